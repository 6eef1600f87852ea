-- How a message that begins a transaction says that there is nothing to do: it can only answer by an error.
CREATE FUNCTION steadfast.refuse(state text, message text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message;
END $$;
