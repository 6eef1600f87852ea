-- How a message that begins a transaction says that there is nothing to do: it can only answer by an error.
CREATE FUNCTION steadfast.refuse(state text, message text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message;
END $$;

-- A check is parsed and planned again for every row that is written. Only we write this column.
ALTER TABLE steadfast.keys DROP CONSTRAINT IF EXISTS keys_state_is_known;

-- A key is known by the first half of its hash.
UPDATE steadfast.keys SET hash = substring(hash FROM 1 FOR 16) WHERE octet_length(hash) > 16;
