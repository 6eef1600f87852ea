-- What all processes know of a circuit breaker that they share. The epoch grows with every change; a process that has
-- seen an older one reads before it writes.
CREATE TABLE steadfast.breakers (
    name     text        NOT NULL,
    state    text        NOT NULL,  -- closed, open, forced_open or forced_closed
    until    timestamptz NOT NULL,  -- from here on an open breaker may be probed
    openings integer     NOT NULL,  -- how often it has opened in a row
    epoch    bigint      NOT NULL,

    CONSTRAINT breakers_one_state PRIMARY KEY (name)
);
