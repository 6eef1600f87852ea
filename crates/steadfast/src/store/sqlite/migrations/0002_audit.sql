-- Who did what, when and why. Rows are only ever added; an operator purges them on purpose.
CREATE TABLE steadfast_audit (
    id      INTEGER NOT NULL,
    at      INTEGER NOT NULL,  -- microseconds since 1970
    actor   TEXT    NOT NULL,
    action  TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    reason  TEXT    NOT NULL,

    CONSTRAINT audit_one_entry PRIMARY KEY (id AUTOINCREMENT)
);
