-- One row for each schedule: when it is due, which job it makes of a tick, and up to which tick everything is dealt with.
CREATE TABLE steadfast.schedules (
    handled       timestamptz NOT NULL,          -- every tick up to here is dealt with; it never goes back
    created_at    timestamptz NOT NULL,
    changed_at    timestamptz NOT NULL,          -- when it last became another one
    last_tick     timestamptz,                   -- the last tick that a job was made of
    paused_at     timestamptz,
    version       integer     NOT NULL,          -- of the job
    last_job      uuid,                          -- the job of the last tick
    name          text        NOT NULL,
    source        text        NOT NULL,          -- declared in a program, or made at run time
    timing        text        NOT NULL,          -- a cron expression, or an interval: every 15m
    time_zone     text,                          -- of the cron expression
    missed        text        NOT NULL,          -- skip, last or all
    overlap       text        NOT NULL,          -- allow or skip
    job           text        NOT NULL,          -- its stored name
    kind          text        NOT NULL,          -- what one must know to run it
    redacted      text,                          -- members of the payload that people do not get to see, as JSON
    paused_by     text,
    paused_reason text,
    payload       bytea       NOT NULL,          -- of the job, as JSON

    CONSTRAINT schedules_one PRIMARY KEY (name)
);

-- One row for each tick that a job was made of, written in the transaction of the job. The constraint is the promise: one job for one
-- tick of a schedule, whoever sees the tick and however often.
CREATE TABLE steadfast.ticks (
    tick     timestamptz NOT NULL,
    job      uuid        NOT NULL,
    schedule text        NOT NULL,

    CONSTRAINT ticks_one_job PRIMARY KEY (schedule, tick)
);
