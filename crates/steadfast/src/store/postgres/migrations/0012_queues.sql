-- Queues: jobs that share hands in each process, and limits over all of them. There is a row for each that somebody has declared.
CREATE TABLE steadfast.queues (
    name            text        NOT NULL,
    running_max     integer,              -- how many of its jobs run at once, on all nodes together
    key_running_max integer,              -- the same for those of one key
    rate_count      integer,              -- how many begin within a time
    rate_every      interval,
    tokens          double precision,     -- how many could have begun at once at this moment
    tokens_at       timestamptz,
    declared_at     timestamptz NOT NULL, -- when a node last declared it
    paused_at       timestamptz,
    paused_by       text,
    paused_reason   text,

    CONSTRAINT queues_one PRIMARY KEY (name)
);

-- What counts against the limits of a queue: one row for each job that runs. It is free as soon as no row of `queue` has this lease, and
-- then deleted by the next who claims from the queue.
CREATE TABLE steadfast.slots (
    queue text   NOT NULL,
    item  uuid   NOT NULL,
    kind  text   NOT NULL,
    epoch bigint NOT NULL,

    CONSTRAINT slots_one PRIMARY KEY (queue, item, kind)
);

-- The queue in which the rows of a kind stand, by whoever knows it.
ALTER TABLE steadfast.kinds ADD COLUMN queue text;

-- Keys of which there is one job at a time: which one that is. The constraint is the promise.
CREATE TABLE steadfast.unique_jobs (
    key        text        NOT NULL,
    item       uuid        NOT NULL,
    kind       text        NOT NULL,
    taken_at   timestamptz NOT NULL,
    held_until timestamptz,           -- until then it is taken whatever becomes of the job

    CONSTRAINT unique_jobs_one PRIMARY KEY (key)
);

-- The key of a unique job: whoever wants it to run again has to have it.
ALTER TABLE steadfast.messages ADD COLUMN unique_key text;

-- Jobs, wherever they are, for people with psql.
CREATE OR REPLACE VIEW steadfast.jobs AS
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
       f.message                   AS last_error,
       coalesce(nullif(split_part(split_part(m.kind, '/', 2), '!', 1), ''), k.queue) AS queue,
       coalesce(nullif(split_part(m.kind, '!', 2), ''), 'normal')                    AS priority,
       m.unique_key
FROM steadfast.messages AS m
LEFT JOIN steadfast.queue AS q ON q.item = m.id AND q.kind = m.kind
LEFT JOIN steadfast.kinds AS k ON k.kind = m.kind
LEFT JOIN LATERAL (SELECT state, attempts, finished_at
                   FROM steadfast.history WHERE item = m.id AND kind = m.kind
                   ORDER BY finished_at DESC LIMIT 1) AS h ON true
LEFT JOIN LATERAL (SELECT message FROM steadfast.failures WHERE item = m.id ORDER BY at DESC LIMIT 1) AS f ON true
WHERE m.kind IS NOT NULL;
