-- A job is a message too: for nobody who wants it, but for whoever can run it. This is the kind of its row in the queue, which begins
-- with `job:`; an event has none.
ALTER TABLE steadfast_messages ADD COLUMN kind TEXT;

DROP VIEW steadfast_outbox_messages;
DROP VIEW steadfast_settlements;
DROP VIEW steadfast_publications;

-- Messages are written through this view: its trigger writes the message, and a row of the queue for what it is for. A job has one,
-- an event one for each target that wants it, whichever process declared that.
CREATE VIEW steadfast_publications AS
SELECT id, type, version, source, correlation_id, causation_id, traceparent, ordering_key, redacted, payload,
       created_at, expires_at,
       created_at AS due_at,
       kind
FROM steadfast_messages
WHERE false;

CREATE TRIGGER steadfast_publish INSTEAD OF INSERT ON steadfast_publications
BEGIN
    INSERT INTO steadfast_messages
           (id, type, version, source, content_type, correlation_id, causation_id, traceparent, ordering_key, redacted,
            payload, created_at, expires_at, kind)
    VALUES (NEW.id, NEW.type, NEW.version, NEW.source, 'application/json', NEW.correlation_id, NEW.causation_id,
            NEW.traceparent, NEW.ordering_key, NEW.redacted, NEW.payload, NEW.created_at, NEW.expires_at, NEW.kind);

    INSERT INTO steadfast_queue (item, kind, state, chain, number, due_at, visible_at)
    SELECT NEW.id,
           t.name || CASE WHEN t.is_versioned AND NEW.version > 1 THEN '@' || NEW.version ELSE '' END,
           'pending',
           t.name || ' ' || NEW.ordering_key,
           CASE WHEN NEW.ordering_key IS NOT NULL THEN last_insert_rowid() END,
           NEW.due_at, NEW.due_at
    FROM steadfast_targets AS t
    WHERE NEW.kind IS NULL
      AND (t.pattern = NEW.type
           OR (substr(t.pattern, -1) = '*'
               AND substr(NEW.type, 1, length(t.pattern) - 1) = substr(t.pattern, 1, length(t.pattern) - 1)))
    -- More than one pattern of a target may fit.
    ON CONFLICT DO NOTHING;

    INSERT INTO steadfast_queue (item, kind, state, due_at, visible_at)
    SELECT NEW.id, NEW.kind, 'pending', NEW.due_at, NEW.due_at
    WHERE NEW.kind IS NOT NULL;
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
            created_at, expires_at, due_at, kind)
    VALUES (NEW.id, NEW.type, NEW.version, NEW.source, NEW.correlation_id, NEW.causation_id, NEW.traceparent,
            NEW.ordering_key, NEW.redacted, NEW.payload, NEW.created_at, NEW.expires_at, NEW.due_at, NEW.kind);

    INSERT INTO steadfast_keys
           (hash, scope, tenant, owner, operation, value, fingerprint, state, status, headers, body, format,
            created_at, expires_at)
    VALUES (NEW.hash, NEW.scope, NEW.tenant, NEW.owner, NEW.operation, NEW.value, NEW.fingerprint, NEW.state, NEW.status,
            NEW.headers, NEW.body, NEW.format, NEW.created_at, NEW.key_expires_at);
END;

-- The columns that the reliability convention names, for people with sqlite3: of events.
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
FROM steadfast_messages AS m
WHERE m.kind IS NULL;

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
       (SELECT f.message FROM steadfast_failures AS f WHERE f.item = m.id ORDER BY f.at DESC LIMIT 1) AS last_error
FROM steadfast_messages AS m
LEFT JOIN steadfast_queue AS q ON q.item = m.id AND q.kind = m.kind
LEFT JOIN steadfast_history AS h ON h.item = m.id AND h.kind = m.kind
WHERE m.kind IS NOT NULL;
