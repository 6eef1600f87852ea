-- One row for each stream that live clients can follow: where it has come to. Whoever writes is alone: in one stream the order
-- of numbers is the order of commits, and whoever has seen a number has seen all before it.
CREATE TABLE steadfast_streams (
    last   INTEGER NOT NULL,  -- the number of its newest entry
    stream TEXT    NOT NULL,

    CONSTRAINT streams_one PRIMARY KEY (stream)
);

-- What was pushed into streams, for those who were away for a while.
CREATE TABLE steadfast_entries (
    -- Larger than every earlier one of its stream, and the time it was appended at, in microseconds since 1970, or a little
    -- later. So it goes on upwards even where the row of a stream was purged meanwhile.
    number     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,  -- when the event was published
    item       TEXT    NOT NULL,  -- the message
    stream     TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    data       TEXT    NOT NULL,  -- JSON

    CONSTRAINT entries_one UNIQUE (stream, number),
    -- A message is in a stream once: this constraint is the promise.
    CONSTRAINT entries_once UNIQUE (item, stream)
);
