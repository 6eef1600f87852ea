-- A key is known by the first half of its hash. (Nothing is needed to claim one: whoever holds the write lock of the file
-- has claimed every key in it.)
UPDATE steadfast_keys SET hash = substr(hash, 1, 16) WHERE length(hash) > 16;
