-- One row for each command that has ended: who asked for what, and the answer every retry gets.
-- It is written in the transaction of the command itself, so a row here means the effect is there too.
CREATE TABLE steadfast_keys (
    created_at  INTEGER NOT NULL,  -- microseconds since 1970
    expires_at  INTEGER NOT NULL,  -- from here on the key counts as absent, purged or not
    status      INTEGER NOT NULL,  -- the HTTP status of the answer
    format      INTEGER NOT NULL,  -- the layout of headers and body
    hash        BLOB    NOT NULL,  -- 16 bytes of SHA-256 over the length-prefixed scope, tenant, owner, operation and value
    scope       TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    operation   TEXT    NOT NULL,
    value       TEXT    NOT NULL,  -- the key as the caller chose it
    state       TEXT    NOT NULL,  -- completed or failed
    fingerprint BLOB    NOT NULL,  -- one byte of algorithm, then the hash of what was asked
    headers     BLOB    NOT NULL,  -- name NUL value NUL, only those that are replayed
    body        BLOB    NOT NULL,  -- bytes, not text: NUL is a legal part of an answer

    -- One outcome for one key: this constraint is the promise.
    CONSTRAINT keys_one_outcome PRIMARY KEY (hash)
);

-- The columns that the reliability convention names, for people with sqlite3.
CREATE VIEW steadfast_idempotency_records AS
SELECT value                                                               AS key,
       tenant                                                              AS tenant_id,
       owner                                                               AS user_id,
       operation,
       lower(hex(fingerprint))                                             AS request_hash,
       state                                                               AS status,
       status                                                              AS response_status_code,
       CAST(body AS TEXT)                                                  AS response_body,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') AS created_at_utc,
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000000.0, 'unixepoch') AS expires_at_utc
FROM steadfast_keys;
