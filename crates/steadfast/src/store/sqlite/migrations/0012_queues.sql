-- Queues: jobs that share hands in each process, and limits over all of them. There is a row for each that somebody has declared.
CREATE TABLE steadfast_queues (
    name            TEXT    NOT NULL,
    running_max     INTEGER,           -- how many of its jobs run at once, on all nodes together
    key_running_max INTEGER,           -- the same for those of one key
    rate_count      INTEGER,           -- how many begin within a time, in microseconds
    rate_every      INTEGER,
    tokens          REAL,              -- how many could have begun at once at this moment
    tokens_at       INTEGER,
    declared_at     INTEGER NOT NULL,  -- when a node last declared it
    paused_at       INTEGER,
    paused_by       TEXT,
    paused_reason   TEXT,

    CONSTRAINT queues_one PRIMARY KEY (name)
) WITHOUT ROWID;

-- What counts against the limits of a queue: one row for each job that runs. It is free as soon as no row of `queue` has this lease, and
-- then deleted by the next who claims from the queue.
CREATE TABLE steadfast_slots (
    epoch INTEGER NOT NULL,
    queue TEXT    NOT NULL,
    item  TEXT    NOT NULL,
    kind  TEXT    NOT NULL,

    CONSTRAINT slots_one PRIMARY KEY (queue, item, kind)
) WITHOUT ROWID;

-- The queue in which the rows of a kind stand, by whoever knows it.
ALTER TABLE steadfast_kinds ADD COLUMN queue TEXT;

-- Keys of which there is one job at a time: which one that is. The constraint is the promise.
CREATE TABLE steadfast_unique_jobs (
    taken_at   INTEGER NOT NULL,
    held_until INTEGER,           -- until then it is taken whatever becomes of the job
    key        TEXT    NOT NULL,
    item       TEXT    NOT NULL,
    kind       TEXT    NOT NULL,

    CONSTRAINT unique_jobs_one PRIMARY KEY (key)
) WITHOUT ROWID;

-- The key of a unique job: whoever wants it to run again has to have it.
ALTER TABLE steadfast_messages ADD COLUMN unique_key TEXT;

DROP VIEW steadfast_settlements;
DROP VIEW steadfast_publications;
DROP VIEW steadfast_jobs;

-- Messages are written through this view. An event gets a row of the queue for each target that wants it, whichever process declared
-- that; a job gets one row.
CREATE VIEW steadfast_publications AS
SELECT id, type, version, source, correlation_id, causation_id, traceparent, ordering_key, redacted, payload,
       created_at, expires_at,
       created_at AS due_at,
       kind,
       kind AS chain,
       unique_key
FROM steadfast_messages
WHERE false;

CREATE TRIGGER steadfast_publish INSTEAD OF INSERT ON steadfast_publications
WHEN NEW.kind IS NULL
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

CREATE TRIGGER steadfast_enqueue INSTEAD OF INSERT ON steadfast_publications
WHEN NEW.kind IS NOT NULL
BEGIN
    INSERT INTO steadfast_messages
           (id, type, version, source, content_type, correlation_id, causation_id, traceparent, redacted,
            payload, created_at, kind, unique_key)
    VALUES (NEW.id, NEW.type, NEW.version, NEW.source, 'application/json', NEW.correlation_id, NEW.causation_id,
            NEW.traceparent, NEW.redacted, NEW.payload, NEW.created_at, NEW.kind, NEW.unique_key);

    INSERT INTO steadfast_queue (item, kind, state, chain, number, due_at, visible_at)
    VALUES (NEW.id, NEW.kind, 'pending', NEW.chain,
            -- Those of a key stand there by their time.
            CASE WHEN NEW.chain IS NOT NULL THEN NEW.due_at END, NEW.due_at, NEW.due_at);
END;

-- The end of a command that has published or enqueued one message, in one statement: the message, and the key with its outcome.
CREATE VIEW steadfast_settlements AS
SELECT p.*,
       k.hash, k.scope, k.tenant, k.owner, k.operation, k.value, k.fingerprint, k.state, k.status, k.headers, k.body, k.format,
       k.expires_at AS key_expires_at
FROM steadfast_publications AS p, steadfast_keys AS k;

CREATE TRIGGER steadfast_settle INSTEAD OF INSERT ON steadfast_settlements
BEGIN
    INSERT INTO steadfast_publications
           (id, type, version, source, correlation_id, causation_id, traceparent, ordering_key, redacted, payload,
            created_at, expires_at, due_at, kind, chain)
    VALUES (NEW.id, NEW.type, NEW.version, NEW.source, NEW.correlation_id, NEW.causation_id, NEW.traceparent,
            NEW.ordering_key, NEW.redacted, NEW.payload, NEW.created_at, NEW.expires_at, NEW.due_at, NEW.kind, NEW.chain);

    INSERT INTO steadfast_keys
           (hash, scope, tenant, owner, operation, value, fingerprint, state, status, headers, body, format,
            created_at, expires_at)
    VALUES (NEW.hash, NEW.scope, NEW.tenant, NEW.owner, NEW.operation, NEW.value, NEW.fingerprint, NEW.state, NEW.status,
            NEW.headers, NEW.body, NEW.format, NEW.created_at, NEW.key_expires_at);
END;

-- Jobs, wherever they are, for people with sqlite3.
CREATE VIEW steadfast_jobs AS
SELECT m.id,
       m.type                                                                AS name,
       CASE WHEN q.state = 'leased'                            THEN 'running'
            WHEN q.state = 'dead'                              THEN 'dead'
            WHEN q.due_at <= (julianday('now') - 2440587.5) * 86400000000.0 THEN 'available'
            WHEN q.attempts > 0                                THEN 'waiting_retry'
            WHEN q.state IS NOT NULL                           THEN 'scheduled'
            ELSE h.state END                                                 AS state,
       CAST(m.payload AS TEXT)                                               AS payload,
       strftime('%Y-%m-%dT%H:%M:%fZ', m.created_at / 1000000.0, 'unixepoch') AS enqueued_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', q.due_at / 1000000.0, 'unixepoch')     AS due_at,
       coalesce(q.attempts, h.attempts)                                      AS attempts,
       q.holder,
       strftime('%Y-%m-%dT%H:%M:%fZ', h.finished_at / 1000000.0, 'unixepoch') AS finished_at,
       (SELECT f.message FROM steadfast_failures AS f WHERE f.item = m.id ORDER BY f.at DESC LIMIT 1) AS last_error,
       coalesce(CASE WHEN instr(m.kind, '/') > 0
                     THEN substr(m.kind, instr(m.kind, '/') + 1, instr(m.kind || '!', '!') - instr(m.kind, '/') - 1) END,
                k.queue)                                                     AS queue,
       CASE WHEN instr(m.kind, '!') > 0 THEN substr(m.kind, instr(m.kind, '!') + 1) ELSE 'normal' END AS priority,
       m.unique_key
FROM steadfast_messages AS m
LEFT JOIN steadfast_kinds AS k ON k.kind = m.kind
LEFT JOIN steadfast_queue AS q ON q.item = m.id AND q.kind = m.kind
LEFT JOIN steadfast_history AS h ON h.item = m.id AND h.kind = m.kind
WHERE m.kind IS NOT NULL;
