-- What all processes know of a circuit breaker that they share. The epoch grows with every change; a process that has
-- seen an older one reads before it writes.
CREATE TABLE steadfast_breakers (
    name     TEXT    NOT NULL,
    state    TEXT    NOT NULL,  -- closed, open, forced_open or forced_closed
    until    INTEGER NOT NULL,  -- microseconds since 1970; from here on an open breaker may be probed
    openings INTEGER NOT NULL,  -- how often it has opened in a row
    epoch    INTEGER NOT NULL,

    CONSTRAINT breakers_one_state PRIMARY KEY (name)
);
