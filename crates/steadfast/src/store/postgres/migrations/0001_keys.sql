-- One row for each command that has ended: who asked for what, and the answer every retry gets.
-- It is written in the transaction of the command itself, so a row here means the effect is there too.
CREATE TABLE steadfast.keys (
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,  -- from here on the key counts as absent, purged or not
    status      smallint    NOT NULL,  -- the HTTP status of the answer
    format      smallint    NOT NULL,  -- the layout of headers and body
    hash        bytea       NOT NULL,  -- 16 bytes of SHA-256 over the length-prefixed scope, tenant, owner, operation and value
    scope       text        NOT NULL,
    tenant      text        NOT NULL,
    owner       text        NOT NULL,
    operation   text        NOT NULL,
    value       text        NOT NULL,  -- the key as the caller chose it
    state       text        NOT NULL,  -- completed or failed
    fingerprint bytea       NOT NULL,  -- one byte of algorithm, then the hash of what was asked
    headers     bytea       NOT NULL,  -- name NUL value NUL, only those that are replayed
    body        bytea       NOT NULL,  -- bytes, not text: NUL is a legal part of an answer

    -- One outcome for one key: this constraint is the promise.
    CONSTRAINT keys_one_outcome PRIMARY KEY (hash)
);

-- The columns that the reliability convention names, for people with psql.
CREATE VIEW steadfast.idempotency_records AS
SELECT value                        AS key,
       tenant                       AS tenant_id,
       owner                        AS user_id,
       operation,
       encode(fingerprint, 'hex')   AS request_hash,
       state                        AS status,
       status                       AS response_status_code,
       encode(body, 'escape')       AS response_body,
       created_at                   AS created_at_utc,
       expires_at                   AS expires_at_utc
FROM steadfast.keys;
