-- What a service's role needs at run time, besides the rights on its own tables. The migrations need more and can be
-- run by another role.
GRANT USAGE ON SCHEMA steadfast TO my_service;
GRANT SELECT ON steadfast.migrations TO my_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON steadfast.keys, steadfast.leases, steadfast.usage TO my_service;
GRANT SELECT, INSERT, UPDATE ON steadfast.breakers TO my_service;
GRANT EXECUTE ON FUNCTION steadfast.refuse(text, text) TO my_service;
GRANT EXECUTE ON FUNCTION steadfast.finish_row(bigint, uuid, text, bigint, bigint, text) TO my_service;
GRANT INSERT ON steadfast.audit TO my_service;
GRANT USAGE ON SEQUENCE steadfast.numbers TO my_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON steadfast.messages, steadfast.queue, steadfast.history, steadfast.failures,
    steadfast.kinds, steadfast.targets, steadfast.slots, steadfast.unique_jobs TO my_service;
GRANT SELECT, INSERT, UPDATE ON steadfast.queues TO my_service;
GRANT SELECT, INSERT, UPDATE ON steadfast.operations TO my_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON steadfast.streams TO my_service;
GRANT SELECT, INSERT, DELETE ON steadfast.entries TO my_service;
GRANT SELECT, INSERT, DELETE ON steadfast.inbox TO my_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON steadfast.schedules TO my_service;
GRANT SELECT, INSERT, DELETE ON steadfast.ticks TO my_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON steadfast.reports TO my_service;
GRANT SELECT, INSERT, DELETE ON steadfast.lines, steadfast.members TO my_service;
