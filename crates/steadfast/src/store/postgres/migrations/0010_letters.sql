-- The kind of the row that is put in line when this one dies, in the same commit: it carries a copy to the dead letters of the broker
-- that the message came by. Whoever buries a row, in whatever way, buries it so; no letter is forgotten with its process.
ALTER TABLE steadfast.queue ADD COLUMN letters text;
