-- A job is a message too: for nobody who wants it, but for whoever can run it. This is the kind of its row in the queue, which begins
-- with `job:`; an event has none.
ALTER TABLE steadfast.messages ADD COLUMN kind text;

-- The columns that the reliability convention names, for people with psql: of events.
CREATE OR REPLACE VIEW steadfast.outbox_messages AS
SELECT m.id,
       m.type                                                  AS event_type,
       encode(m.payload, 'escape')                             AS payload,
       m.created_at                                            AS occurred_at_utc,
       CASE WHEN d.kinds IS NULL THEN coalesce(h.finished_at, m.created_at) END AS processed_at_utc,
       coalesce(d.attempts, h.attempts, 0)                     AS attempt_count,
       d.next_at                                               AS next_attempt_at_utc,
       f.message                                               AS last_error
FROM steadfast.messages AS m
LEFT JOIN LATERAL (SELECT count(*) AS kinds, max(attempts) AS attempts,
                          min(CASE state WHEN 'leased' THEN leased_until ELSE visible_at END)
                              FILTER (WHERE state <> 'dead') AS next_at
                   FROM steadfast.queue WHERE item = m.id HAVING count(*) > 0) AS d ON true
LEFT JOIN LATERAL (SELECT max(finished_at) AS finished_at, max(attempts) AS attempts
                   FROM steadfast.history WHERE item = m.id) AS h ON true
LEFT JOIN LATERAL (SELECT message FROM steadfast.failures WHERE item = m.id ORDER BY at DESC LIMIT 1) AS f ON true
WHERE m.kind IS NULL;

-- Jobs, wherever they are, for people with psql.
CREATE VIEW steadfast.jobs AS
SELECT m.id,
       m.type                      AS name,
       CASE WHEN q.state = 'leased'              THEN 'running'
            WHEN q.state = 'dead'                THEN 'dead'
            WHEN q.due_at <= clock_timestamp()   THEN 'available'
            WHEN q.attempts > 0                  THEN 'waiting_retry'
            WHEN q.state IS NOT NULL             THEN 'scheduled'
            ELSE h.state END       AS state,
       encode(m.payload, 'escape') AS payload,
       m.created_at                AS enqueued_at,
       q.due_at,
       coalesce(q.attempts, h.attempts) AS attempts,
       q.holder,
       h.finished_at,
       f.message                   AS last_error
FROM steadfast.messages AS m
LEFT JOIN steadfast.queue AS q ON q.item = m.id AND q.kind = m.kind
LEFT JOIN LATERAL (SELECT state, attempts, finished_at
                   FROM steadfast.history WHERE item = m.id AND kind = m.kind
                   ORDER BY finished_at DESC LIMIT 1) AS h ON true
LEFT JOIN LATERAL (SELECT message FROM steadfast.failures WHERE item = m.id ORDER BY at DESC LIMIT 1) AS f ON true
WHERE m.kind IS NOT NULL;
