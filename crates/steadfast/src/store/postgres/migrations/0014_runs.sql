-- Somebody wants a job no more that is worked on: when he said so, who, and why. In no index, so that saying it changes the row alone.
-- Whatever ends the attempt, but a success that needs no transaction, ends the job.
ALTER TABLE steadfast.queue
    ADD COLUMN cancel_at     timestamptz,
    ADD COLUMN cancel_by     text,
    ADD COLUMN cancel_reason text;

-- What a job has told while it ran, of those that have told something. Who no longer holds the lease changes nothing here.
CREATE TABLE steadfast.reports (
    at     timestamptz NOT NULL,  -- when it last told something
    epoch  bigint      NOT NULL,  -- by which claim
    done   bigint,                -- how far it is
    total  bigint,                -- of how much, if that is known
    lines  bigint      NOT NULL,  -- how many lines it has told; the newest of them are kept
    item   uuid        NOT NULL,  -- the job
    doing  text,                  -- what it is at
    output text,                  -- what came of it, as JSON

    CONSTRAINT reports_one PRIMARY KEY (item)
) WITH (fillfactor = 70);

-- The newest lines that a job has told.
CREATE TABLE steadfast.lines (
    at      timestamptz NOT NULL,
    number  bigint      NOT NULL,  -- from 1, through all attempts
    attempt integer     NOT NULL,
    item    uuid        NOT NULL,  -- the job
    text    text        NOT NULL,

    CONSTRAINT lines_one PRIMARY KEY (item, number)
);

-- A job that belongs to a batch. The job that waits for the end of the batch has its id.
CREATE TABLE steadfast.members (
    item  uuid NOT NULL,  -- the job
    batch uuid NOT NULL,

    CONSTRAINT members_one PRIMARY KEY (item)
);

-- For those who look whether all of them have ended.
CREATE INDEX members_by_batch ON steadfast.members (batch, item);
