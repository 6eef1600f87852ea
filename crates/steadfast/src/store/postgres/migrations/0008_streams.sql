-- One row for each stream that live clients can follow: where it has come to. It is locked while entries are appended, until
-- COMMIT: in one stream the order of numbers is the order of commits, and whoever has seen a number has seen all before it.
CREATE TABLE steadfast.streams (
    last   bigint NOT NULL,  -- the number of its newest entry
    stream text   NOT NULL,

    CONSTRAINT streams_one PRIMARY KEY (stream)
) WITH (fillfactor = 50);

-- What was pushed into streams, for those who were away for a while.
CREATE TABLE steadfast.entries (
    -- Larger than every earlier one of its stream, and the time it was appended at, in microseconds since 1970, or a little
    -- later. So it goes on upwards even where the row of a stream was purged meanwhile.
    number     bigint      NOT NULL,
    created_at timestamptz NOT NULL,  -- when the event was published
    item       uuid        NOT NULL,  -- the message
    stream     text        NOT NULL,
    type       text        NOT NULL,
    data       text        NOT NULL,  -- JSON

    CONSTRAINT entries_one PRIMARY KEY (stream, number),
    -- A message is in a stream once: this constraint is the promise.
    CONSTRAINT entries_once UNIQUE (item, stream)
);
