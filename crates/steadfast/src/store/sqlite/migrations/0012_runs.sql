-- Somebody wants a job no more that is worked on: when he said so, who, and why. In no index, so that saying it changes the row alone.
-- Whatever ends the attempt, but a success that needs no transaction, ends the job.
ALTER TABLE steadfast_queue ADD COLUMN cancel_at INTEGER;
ALTER TABLE steadfast_queue ADD COLUMN cancel_by TEXT;
ALTER TABLE steadfast_queue ADD COLUMN cancel_reason TEXT;
