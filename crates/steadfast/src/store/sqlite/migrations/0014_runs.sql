-- Somebody wants a job no more that is worked on: when he said so, who, and why. In no index, so that saying it changes the row alone.
-- Whatever ends the attempt, but a success that needs no transaction, ends the job.
ALTER TABLE steadfast_queue ADD COLUMN cancel_at INTEGER;
ALTER TABLE steadfast_queue ADD COLUMN cancel_by TEXT;
ALTER TABLE steadfast_queue ADD COLUMN cancel_reason TEXT;

-- What a job has told while it ran, of those that have told something. Who no longer holds the lease changes nothing here.
CREATE TABLE steadfast_reports (
    at     INTEGER NOT NULL,  -- when it last told something
    epoch  INTEGER NOT NULL,  -- by which claim
    done   INTEGER,           -- how far it is
    total  INTEGER,           -- of how much, if that is known
    lines  INTEGER NOT NULL,  -- how many lines it has told; the newest of them are kept
    item   TEXT    NOT NULL,  -- the job
    doing  TEXT,              -- what it is at
    output TEXT,              -- what came of it, as JSON

    CONSTRAINT reports_one PRIMARY KEY (item)
) WITHOUT ROWID;

-- The newest lines that a job has told.
CREATE TABLE steadfast_lines (
    at      INTEGER NOT NULL,
    number  INTEGER NOT NULL,  -- from 1, through all attempts
    attempt INTEGER NOT NULL,
    item    TEXT    NOT NULL,  -- the job
    text    TEXT    NOT NULL,

    CONSTRAINT lines_one PRIMARY KEY (item, number)
) WITHOUT ROWID;

-- A job that belongs to a batch. The job that waits for the end of the batch has its id.
CREATE TABLE steadfast_members (
    item  TEXT NOT NULL,  -- the job
    batch TEXT NOT NULL,

    CONSTRAINT members_one PRIMARY KEY (item)
) WITHOUT ROWID;

-- For those who look whether all of them have ended.
CREATE INDEX steadfast_members_by_batch ON steadfast_members (batch, item);
