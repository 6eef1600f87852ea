-- Somebody wants a job no more that is worked on: when he said so, who, and why. In no index, so that saying it changes the row alone.
-- Whatever ends the attempt, but a success that needs no transaction, ends the job.
ALTER TABLE steadfast.queue
    ADD COLUMN cancel_at     timestamptz,
    ADD COLUMN cancel_by     text,
    ADD COLUMN cancel_reason text;
