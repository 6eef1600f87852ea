-- Opens a command's transaction and claims its key, as a part of the message that says BEGIN. Such a message can only
-- answer by an error, so that is how it says that there is nothing to do. A key of NULL claims nothing.
CREATE FUNCTION steadfast.claim(
    key_hash      bytea,
    key_lock      bigint,
    offset_micros bigint,
    idle_millis   integer,
    watch_millis  integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_ours boolean;
    expires timestamptz;
    was     text;  -- an assignment is cheaper than a query that throws its result away
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'the connection is in a transaction that somebody left open' USING ERRCODE = 'SFC01';
    END IF;
    was := set_config('idle_in_transaction_session_timeout', idle_millis::text, true);
    was := set_config('sf.transaction', 'open', true);
    IF watch_millis > 0 THEN
        was := set_config('client_connection_check_interval', watch_millis::text, true);
    END IF;
    IF key_hash IS NULL THEN
        RETURN;
    END IF;

    -- In this order: what is read after the lock was taken is what its last holder committed.
    is_ours := pg_try_advisory_xact_lock(key_lock);
    SELECT expires_at INTO expires FROM steadfast.keys WHERE hash = key_hash;
    IF expires > clock_timestamp() + offset_micros * interval '1 microsecond' THEN
        RAISE EXCEPTION 'the command has ended before; its answer is replayed' USING ERRCODE = 'SFC02';
    ELSIF NOT is_ours THEN
        RAISE EXCEPTION 'the command is in flight' USING ERRCODE = 'SFC03';
    ELSIF expires IS NOT NULL THEN
        -- An expired record makes room.
        DELETE FROM steadfast.keys WHERE hash = key_hash;
    END IF;
END $$;
