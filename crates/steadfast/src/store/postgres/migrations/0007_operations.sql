-- One row for each bulk operation: what somebody wants done with every delivery that fits a filter. It is done a batch at a
-- time, and each batch writes here, in its own transaction, how far it has come: whoever goes on begins at the cursor.
CREATE TABLE steadfast.operations (
    created_at  timestamptz NOT NULL,            -- what died later is left alone
    updated_at  timestamptz NOT NULL,
    expected    bigint      NOT NULL,            -- how many fitted when it began
    done        bigint      NOT NULL DEFAULT 0,
    batches     bigint      NOT NULL DEFAULT 0,
    id          uuid        NOT NULL,
    cursor_item uuid        NOT NULL,            -- the last delivery that was looked at
    cursor_kind text        NOT NULL,
    verb        text        NOT NULL,            -- requeue, skip or discard
    filter      text        NOT NULL,            -- as JSON
    operator    text        NOT NULL,
    reason      text        NOT NULL,
    state       text        NOT NULL,            -- running, done or cancelled

    CONSTRAINT operations_one PRIMARY KEY (id)
);

-- For those who look after dead letters, page by page. Only the dead are in it, so whoever is delivered does not pay. It does not
-- speak of the state: that is what claims change.
CREATE INDEX queue_dead ON steadfast.queue (item, kind) WHERE visible_at = 'infinity';
