-- One row for each message from elsewhere that a consumer has handled or keeps. It is written in the transaction of what the
-- consumer did, before anything else of it: whoever comes second waits for that commit, and finds the row.
CREATE TABLE steadfast.inbox (
    received_at timestamptz NOT NULL,
    item        uuid,                  -- the message, if it was kept to be worked on later
    consumer    text        NOT NULL,  -- the name of the reaction
    source      text        NOT NULL,  -- who says it: an id means something only beside its source
    message_id  text        NOT NULL,

    -- A consumer handles a message of a source once: this constraint is the promise.
    CONSTRAINT inbox_one PRIMARY KEY (consumer, source, message_id)
);
