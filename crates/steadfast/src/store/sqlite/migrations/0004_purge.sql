-- Work that one process does for all: whoever holds the lease. The token only ever grows, so a late holder can be told
-- from the present one.
CREATE TABLE steadfast_leases (
    name       TEXT    NOT NULL,
    holder     TEXT    NOT NULL,
    token      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,  -- microseconds since 1970

    CONSTRAINT leases_one_holder PRIMARY KEY (name)
);

-- How much each owner keeps in the table of keys, counted by services that set a quota.
CREATE TABLE steadfast_usage (
    tenant TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    keys   INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,

    CONSTRAINT usage_one_owner PRIMARY KEY (tenant, owner)
);

-- Whatever removes keys gives their room back.
CREATE TRIGGER steadfast_keys_give_back AFTER DELETE ON steadfast_keys
BEGIN
    UPDATE steadfast_usage
    SET keys = max(keys - 1, 0), bytes = max(bytes - length(OLD.headers) - length(OLD.body), 0)
    WHERE tenant = OLD.tenant AND owner = OLD.owner;
END;
