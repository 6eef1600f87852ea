-- Gives every message its number. Taken while the lock of its ordering key is held, which lasts until COMMIT: among
-- messages of one key the order of numbers is the order of commits.
CREATE SEQUENCE steadfast.numbers;

-- One row for each message: an event that somebody published. It is written in the transaction of whoever says it, and
-- never changed; what becomes of it stands in the queue and in the history.
CREATE TABLE steadfast.messages (
    number         bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz,            -- from here on nobody wants to hear of it
    version        integer     NOT NULL,   -- of the type
    id             uuid        NOT NULL,
    type           text        NOT NULL,
    source         text        NOT NULL,   -- who says it
    content_type   text        NOT NULL,
    correlation_id text,                   -- what it is all about
    causation_id   text,                   -- the message that brought it about
    traceparent    text,
    ordering_key   text,
    headers        text,                   -- further attributes, as JSON
    redacted       text,                   -- fields of the payload that are not shown to people, as JSON
    payload        bytea       NOT NULL,

    CONSTRAINT messages_one PRIMARY KEY (id)
);

-- For the purge, which looks for the old ones.
CREATE INDEX messages_by_age ON steadfast.messages USING brin (created_at) WITH (autosummarize = on);

-- Leased rows: work that is still to do. Whoever works on a row holds its lease, and everything that he says about it
-- afterwards counts only while epoch and token are still his. What is done leaves this table.
CREATE TABLE steadfast.queue (
    -- What stays as it is comes first: a change that leaves the beginning of a row alone takes less of the log.
    due_at       timestamptz NOT NULL,
    number       bigint,                         -- its place in the chain
    item         uuid        NOT NULL,           -- the message
    kind         text        NOT NULL,           -- what one must know to work on it: the target of a delivery
    chain        text,                           -- rows of one chain are worked on one after another
    visible_at   timestamptz NOT NULL,           -- when it is looked at first: its due time, later if others are ahead; never if dead
    leased_until timestamptz,                    -- when others may have it, if it is leased
    began_at     timestamptz,                    -- the first attempt
    epoch        bigint      NOT NULL DEFAULT 0, -- how often it was claimed; it never goes back
    token        bigint      NOT NULL DEFAULT 0, -- of the present lease, at random
    attempts     integer     NOT NULL DEFAULT 0,
    state        text        NOT NULL,           -- pending, leased or dead
    holder       text,                           -- who has the lease, for people

    -- A message is delivered to a target once: this constraint is the promise.
    CONSTRAINT queue_one PRIMARY KEY (item, kind)
-- Every row is claimed once, as a rule. There is room on its page for the second version, which is half as long again, and nothing
-- that a claim changes is in an index, so it is written there and nowhere else.
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- For the claim, kind by kind.
CREATE INDEX queue_next ON steadfast.queue (kind, visible_at);
-- For the claim, which leaves a row alone while an earlier one of its chain is there.
CREATE INDEX queue_order ON steadfast.queue (chain, number) WHERE chain IS NOT NULL;

-- Rows that have left the queue, for people who ask what became of a message.
CREATE TABLE steadfast.history (
    finished_at timestamptz NOT NULL,
    attempts    integer     NOT NULL,
    item        uuid        NOT NULL,
    state       text        NOT NULL,  -- delivered or skipped
    kind        text        NOT NULL,
    detail      text                   -- what the other side confirmed, or why it was skipped
);

CREATE INDEX history_by_age ON steadfast.history USING brin (finished_at) WITH (autosummarize = on);
-- Ids grow with time and rows end soon, so a coarse index finds them.
CREATE INDEX history_by_item ON steadfast.history USING brin (item) WITH (autosummarize = on);

-- Every attempt that failed.
CREATE TABLE steadfast.failures (
    at          timestamptz NOT NULL,
    epoch       bigint      NOT NULL,
    attempt     integer     NOT NULL,
    item        uuid        NOT NULL,
    kind        text        NOT NULL,
    failure     text        NOT NULL,  -- transient, definitive, unknown, ..
    code        text        NOT NULL,
    message     text        NOT NULL,
    fingerprint text        NOT NULL,  -- the same for failures that differ only in numbers and ids

    CONSTRAINT failures_one PRIMARY KEY (item, kind, epoch)
);

-- What nodes know to work on.
CREATE TABLE steadfast.kinds (
    kind          text        NOT NULL,
    seen_at       timestamptz NOT NULL,  -- when a node that knows it last said so
    paused_at     timestamptz,
    paused_by     text,
    paused_reason text,

    CONSTRAINT kinds_one PRIMARY KEY (kind)
);

-- Where messages go. Every process that declares a target writes it here, and every process that publishes reads it.
CREATE TABLE steadfast.targets (
    name         text        NOT NULL,
    pattern      text        NOT NULL,  -- a type, a prefix and *, or *
    is_versioned boolean     NOT NULL,  -- whether who works on it must know the version of the type
    since        timestamptz NOT NULL,

    CONSTRAINT targets_one PRIMARY KEY (name, pattern)
);

-- The columns that the reliability convention names, for people with psql.
CREATE VIEW steadfast.outbox_messages AS
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
LEFT JOIN LATERAL (SELECT message FROM steadfast.failures WHERE item = m.id ORDER BY at DESC LIMIT 1) AS f ON true;
