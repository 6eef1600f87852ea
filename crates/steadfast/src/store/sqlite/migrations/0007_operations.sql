-- One row for each bulk operation: what somebody wants done with every delivery that fits a filter. It is done a batch at a
-- time, and each batch writes here, in its own transaction, how far it has come: whoever goes on begins at the cursor.
CREATE TABLE steadfast_operations (
    created_at  INTEGER NOT NULL,            -- what died later is left alone
    updated_at  INTEGER NOT NULL,
    expected    INTEGER NOT NULL,            -- how many fitted when it began
    done        INTEGER NOT NULL DEFAULT 0,
    batches     INTEGER NOT NULL DEFAULT 0,
    id          TEXT    NOT NULL,
    cursor_item TEXT    NOT NULL,            -- the last delivery that was looked at
    cursor_kind TEXT    NOT NULL,
    verb        TEXT    NOT NULL,            -- requeue, skip or discard
    filter      TEXT    NOT NULL,            -- as JSON
    operator    TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    state       TEXT    NOT NULL,            -- running, done or cancelled

    CONSTRAINT operations_one PRIMARY KEY (id)
) WITHOUT ROWID;

-- For those who look after dead letters, page by page. Only the dead are in it, so whoever is delivered does not pay. It does not
-- speak of the state: that is what claims change.
CREATE INDEX steadfast_queue_dead ON steadfast_queue (item, kind) WHERE visible_at = 9223372036854775807;
