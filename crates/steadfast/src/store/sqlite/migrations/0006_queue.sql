-- One row for each message: an event that somebody published. It is written in the transaction of whoever says it, and
-- never changed; what becomes of it stands in the queue and in the history. Whoever writes is alone, so the order of
-- numbers is the order of commits.
CREATE TABLE steadfast_messages (
    number         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    created_at     INTEGER NOT NULL,  -- microseconds since 1970
    expires_at     INTEGER,           -- from here on nobody wants to hear of it
    version        INTEGER NOT NULL,  -- of the type
    id             TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    source         TEXT    NOT NULL,  -- who says it
    content_type   TEXT    NOT NULL,
    correlation_id TEXT,              -- what it is all about
    causation_id   TEXT,              -- the message that brought it about
    traceparent    TEXT,
    ordering_key   TEXT,
    headers        TEXT,              -- further attributes, as JSON
    redacted       TEXT,              -- fields of the payload that are not shown to people, as JSON
    payload        BLOB    NOT NULL,

    CONSTRAINT messages_one UNIQUE (id)
);

-- Leased rows: work that is still to do. Whoever works on a row holds its lease, and everything that he says about it
-- afterwards counts only while epoch and token are still his. What is done leaves this table.
CREATE TABLE steadfast_queue (
    visible_at   INTEGER NOT NULL,            -- when it is looked at first: its due time, later if others are ahead; never if dead
    due_at       INTEGER NOT NULL,
    leased_until INTEGER,                     -- when others may have it, if it is leased; in no index, so a claim changes none
    began_at     INTEGER,                     -- the first attempt
    number       INTEGER,                     -- its place in the chain
    epoch        INTEGER NOT NULL DEFAULT 0,  -- how often it was claimed; it never goes back
    token        INTEGER NOT NULL DEFAULT 0,  -- of the present lease, at random
    attempts     INTEGER NOT NULL DEFAULT 0,
    item         TEXT    NOT NULL,            -- the message
    state        TEXT    NOT NULL,            -- pending, leased or dead
    kind         TEXT    NOT NULL,            -- what one must know to work on it: the target of a delivery
    chain        TEXT,                        -- rows of one chain are worked on one after another
    holder       TEXT,                        -- who has the lease, for people

    -- A message is delivered to a target once: this constraint is the promise.
    CONSTRAINT queue_one PRIMARY KEY (item, kind)
) WITHOUT ROWID;

-- For the claim, kind by kind.
CREATE INDEX steadfast_queue_next ON steadfast_queue (kind, visible_at);
-- For the claim, which leaves a row alone while an earlier one of its chain is there.
CREATE INDEX steadfast_queue_order ON steadfast_queue (chain, number) WHERE chain IS NOT NULL;

-- Rows that have left the queue, for people who ask what became of a message.
CREATE TABLE steadfast_history (
    finished_at INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    item        TEXT    NOT NULL,
    state       TEXT    NOT NULL,  -- delivered or skipped
    kind        TEXT    NOT NULL,
    detail      TEXT               -- what the other side confirmed, or why it was skipped
);

CREATE INDEX steadfast_history_by_item ON steadfast_history (item);

-- Every attempt that failed.
CREATE TABLE steadfast_failures (
    at          INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    item        TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    failure     TEXT    NOT NULL,  -- transient, definitive, unknown, ..
    code        TEXT    NOT NULL,
    message     TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,  -- the same for failures that differ only in numbers and ids

    CONSTRAINT failures_one PRIMARY KEY (item, kind, epoch)
) WITHOUT ROWID;

-- What nodes know to work on.
CREATE TABLE steadfast_kinds (
    kind          TEXT    NOT NULL,
    seen_at       INTEGER NOT NULL,  -- when a node that knows it last said so
    paused_at     INTEGER,
    paused_by     TEXT,
    paused_reason TEXT,

    CONSTRAINT kinds_one PRIMARY KEY (kind)
) WITHOUT ROWID;

-- Where messages go. Every process that declares a target writes it here, and every process that publishes reads it.
CREATE TABLE steadfast_targets (
    name         TEXT    NOT NULL,
    pattern      TEXT    NOT NULL,  -- a type, a prefix and *, or *
    is_versioned INTEGER NOT NULL,  -- whether who works on it must know the version of the type
    since        INTEGER NOT NULL,

    CONSTRAINT targets_one PRIMARY KEY (name, pattern)
) WITHOUT ROWID;

-- Messages are written through this view: its trigger writes the message, and a delivery for each target that wants one,
-- whichever process declared it.
CREATE VIEW steadfast_publications AS
SELECT id, type, version, source, correlation_id, causation_id, traceparent, ordering_key, redacted, payload,
       created_at, expires_at,
       created_at AS due_at
FROM steadfast_messages
WHERE false;

CREATE TRIGGER steadfast_publish INSTEAD OF INSERT ON steadfast_publications
BEGIN
    INSERT INTO steadfast_messages
           (id, type, version, source, content_type, correlation_id, causation_id, traceparent, ordering_key, redacted,
            payload, created_at, expires_at)
    VALUES (NEW.id, NEW.type, NEW.version, NEW.source, 'application/json', NEW.correlation_id, NEW.causation_id,
            NEW.traceparent, NEW.ordering_key, NEW.redacted, NEW.payload, NEW.created_at, NEW.expires_at);

    INSERT INTO steadfast_queue (item, kind, state, chain, number, due_at, visible_at)
    SELECT NEW.id,
           t.name || CASE WHEN t.is_versioned AND NEW.version > 1 THEN '@' || NEW.version ELSE '' END,
           'pending',
           t.name || ' ' || NEW.ordering_key,
           CASE WHEN NEW.ordering_key IS NOT NULL THEN last_insert_rowid() END,
           NEW.due_at, NEW.due_at
    FROM steadfast_targets AS t
    WHERE t.pattern = NEW.type
       OR (substr(t.pattern, -1) = '*'
           AND substr(NEW.type, 1, length(t.pattern) - 1) = substr(t.pattern, 1, length(t.pattern) - 1))
    -- More than one pattern of a target may fit.
    ON CONFLICT DO NOTHING;
END;

-- The end of a command that has published one message, in one statement: the message, and the key with its outcome.
CREATE VIEW steadfast_settlements AS
SELECT p.*,
       k.hash, k.scope, k.tenant, k.owner, k.operation, k.value, k.fingerprint, k.state, k.status, k.headers, k.body, k.format,
       k.expires_at AS key_expires_at
FROM steadfast_publications AS p, steadfast_keys AS k;

CREATE TRIGGER steadfast_settle INSTEAD OF INSERT ON steadfast_settlements
BEGIN
    INSERT INTO steadfast_publications
           (id, type, version, source, correlation_id, causation_id, traceparent, ordering_key, redacted, payload,
            created_at, expires_at, due_at)
    VALUES (NEW.id, NEW.type, NEW.version, NEW.source, NEW.correlation_id, NEW.causation_id, NEW.traceparent,
            NEW.ordering_key, NEW.redacted, NEW.payload, NEW.created_at, NEW.expires_at, NEW.due_at);

    INSERT INTO steadfast_keys
           (hash, scope, tenant, owner, operation, value, fingerprint, state, status, headers, body, format,
            created_at, expires_at)
    VALUES (NEW.hash, NEW.scope, NEW.tenant, NEW.owner, NEW.operation, NEW.value, NEW.fingerprint, NEW.state, NEW.status,
            NEW.headers, NEW.body, NEW.format, NEW.created_at, NEW.key_expires_at);
END;

-- The columns that the reliability convention names, for people with sqlite3.
CREATE VIEW steadfast_outbox_messages AS
SELECT m.id,
       m.type                                                                AS event_type,
       CAST(m.payload AS TEXT)                                               AS payload,
       strftime('%Y-%m-%dT%H:%M:%fZ', m.created_at / 1000000.0, 'unixepoch') AS occurred_at_utc,
       CASE WHEN NOT EXISTS (SELECT 1 FROM steadfast_queue AS q WHERE q.item = m.id)
            THEN strftime('%Y-%m-%dT%H:%M:%fZ',
                          coalesce((SELECT max(h.finished_at) FROM steadfast_history AS h WHERE h.item = m.id),
                                   m.created_at) / 1000000.0, 'unixepoch')
       END                                                                   AS processed_at_utc,
       coalesce((SELECT max(q.attempts) FROM steadfast_queue AS q WHERE q.item = m.id),
                (SELECT max(h.attempts) FROM steadfast_history AS h WHERE h.item = m.id), 0) AS attempt_count,
       (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', min(iif(q.state = 'leased', q.leased_until, q.visible_at)) / 1000000.0, 'unixepoch')
        FROM steadfast_queue AS q WHERE q.item = m.id AND q.state <> 'dead') AS next_attempt_at_utc,
       (SELECT f.message FROM steadfast_failures AS f WHERE f.item = m.id ORDER BY f.at DESC LIMIT 1) AS last_error
FROM steadfast_messages AS m;
