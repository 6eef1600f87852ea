-- One row for each message from elsewhere that a consumer has handled or keeps. It is written in the transaction of what the
-- consumer did, before anything else of it: whoever comes second finds the row.
CREATE TABLE steadfast_inbox (
    received_at INTEGER NOT NULL,  -- microseconds since 1970
    item        TEXT,              -- the message, if it was kept to be worked on later
    consumer    TEXT    NOT NULL,  -- the name of the reaction
    source      TEXT    NOT NULL,  -- who says it: an id means something only beside its source
    message_id  TEXT    NOT NULL,

    -- A consumer handles a message of a source once: this constraint is the promise.
    CONSTRAINT inbox_one UNIQUE (consumer, source, message_id)
);
