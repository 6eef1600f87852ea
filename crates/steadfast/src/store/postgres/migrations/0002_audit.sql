-- Who did what, when and why. Rows are only ever added; an operator purges them on purpose.
CREATE TABLE steadfast.audit (
    id      bigint      GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL,
    actor   text        NOT NULL,
    action  text        NOT NULL,
    subject text        NOT NULL,
    reason  text        NOT NULL,

    CONSTRAINT audit_one_entry PRIMARY KEY (id)
);
