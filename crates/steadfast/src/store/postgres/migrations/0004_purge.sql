-- Work that one process does for all: whoever holds the lease. The token only ever grows, so a late holder can be told
-- from the present one.
CREATE TABLE steadfast.leases (
    name       text        NOT NULL,
    holder     text        NOT NULL,
    token      bigint      NOT NULL,
    expires_at timestamptz NOT NULL,

    CONSTRAINT leases_one_holder PRIMARY KEY (name)
);

-- How much each owner keeps in the table of keys, counted by services that set a quota. Rows change often and keep their
-- place on their page.
CREATE TABLE steadfast.usage (
    tenant text   NOT NULL,
    owner  text   NOT NULL,
    keys   bigint NOT NULL,
    bytes  bigint NOT NULL,

    CONSTRAINT usage_one_owner PRIMARY KEY (tenant, owner)
) WITH (fillfactor = 70);

-- Whatever removes keys gives their room back.
CREATE FUNCTION steadfast.give_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE steadfast.usage AS u
    SET keys = greatest(u.keys - g.keys, 0), bytes = greatest(u.bytes - g.bytes, 0)
    FROM (SELECT tenant, owner, count(*) AS keys, sum(octet_length(headers) + octet_length(body)) AS bytes
          FROM gone
          GROUP BY tenant, owner) AS g
    WHERE u.tenant = g.tenant AND u.owner = g.owner;
    RETURN NULL;
END $$;

CREATE TRIGGER keys_give_back AFTER DELETE ON steadfast.keys
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION steadfast.give_back();
