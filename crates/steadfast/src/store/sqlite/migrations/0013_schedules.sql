-- One row for each schedule: when it is due, which job it makes of a tick, and up to which tick everything is dealt with.
CREATE TABLE steadfast_schedules (
    handled       INTEGER NOT NULL,          -- every tick up to here is dealt with; it never goes back
    created_at    INTEGER NOT NULL,
    changed_at    INTEGER NOT NULL,          -- when it last became another one
    last_tick     INTEGER,                   -- the last tick that a job was made of
    paused_at     INTEGER,
    version       INTEGER NOT NULL,          -- of the job
    last_job      TEXT,                      -- the job of the last tick
    name          TEXT    NOT NULL,
    source        TEXT    NOT NULL,          -- declared in a program, or made at run time
    timing        TEXT    NOT NULL,          -- a cron expression, or an interval: every 15m
    time_zone     TEXT,                      -- of the cron expression
    missed        TEXT    NOT NULL,          -- skip, last or all
    overlap       TEXT    NOT NULL,          -- allow or skip
    job           TEXT    NOT NULL,          -- its stored name
    kind          TEXT    NOT NULL,          -- what one must know to run it
    redacted      TEXT,                      -- members of the payload that people do not get to see, as JSON
    paused_by     TEXT,
    paused_reason TEXT,
    payload       BLOB    NOT NULL,          -- of the job, as JSON

    CONSTRAINT schedules_one PRIMARY KEY (name)
);

-- One row for each tick that a job was made of, written in the transaction of the job. The constraint is the promise: one job for one
-- tick of a schedule, whoever sees the tick and however often.
CREATE TABLE steadfast_ticks (
    tick     INTEGER NOT NULL,
    job      TEXT    NOT NULL,
    schedule TEXT    NOT NULL,

    CONSTRAINT ticks_one_job PRIMARY KEY (schedule, tick)
);
