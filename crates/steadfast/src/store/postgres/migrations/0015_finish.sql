-- Ends a leased row in the transaction of what was done: it leaves the queue for the history, and the one behind it is shown. False: the
-- lease is lost, or the row was cancelled.
--
-- It is a function because of its settings. Handlers have connections of the pool, where the server plans by what it knows of the size
-- of the queue. That is of no use: the queue is empty most of the time, and a plan that is best then reads all of a backlog for each row.
CREATE FUNCTION steadfast.finish_row(
    ahead bigint, its_item uuid, its_kind text, its_epoch bigint, its_token bigint, word text
) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    at   timestamptz := clock_timestamp() + ahead * interval '1 microsecond';
    gone record;
BEGIN
    DELETE FROM steadfast.queue AS q
    -- By the primary key, and not by the index on kinds, which does not see this comparison.
    WHERE q.item = its_item AND q.kind || '' = its_kind AND q.epoch = its_epoch AND q.token = its_token
      AND q.state = 'leased' AND q.cancel_at IS NULL
    RETURNING q.attempts, q.chain, q.number INTO gone;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO steadfast.history (finished_at, attempts, item, state, kind)
    VALUES (at, gone.attempts, its_item, word, its_kind);
    IF left(gone.chain, 1) = '/' THEN
        -- A key with a limit: those that have waited longest, behind those of other keys.
        UPDATE steadfast.queue AS q
        SET visible_at = at
        WHERE q.item = ANY (ARRAY(
                  SELECT n.item
                  FROM steadfast.queue AS n
                  WHERE n.chain = gone.chain AND n.state = 'pending' AND n.visible_at > n.due_at
                    AND n.number <= extract(epoch FROM at) * 1000000
                  ORDER BY n.number
                  LIMIT 2))
          AND coalesce(q.chain, '') = gone.chain AND q.state = 'pending';
    ELSIF gone.chain IS NOT NULL THEN
        UPDATE steadfast.queue AS q
        SET visible_at = q.due_at
        WHERE q.item = ANY (ARRAY(
                  SELECT n.item
                  FROM steadfast.queue AS n
                  WHERE n.chain = gone.chain AND n.number > gone.number
                  ORDER BY n.number
                  LIMIT 1))
          AND coalesce(q.chain, '') = gone.chain AND q.state = 'pending' AND q.visible_at > q.due_at;
    END IF;
    RETURN true;
END
$$;
