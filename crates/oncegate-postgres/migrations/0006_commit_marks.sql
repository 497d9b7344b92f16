-- How a transaction is recognised after its COMMIT got no answer: one row for each connection that writes. Every
-- transaction of that connection writes a random id of its own into it. If the id is there, the transaction is committed.
-- Nothing else proves that: after a crash or a failover another transaction may have the same transaction id, and another
-- replica may have written the same keys.
CREATE TABLE commit_marks (
    connection uuid   PRIMARY KEY,
    commit_id  uuid   NOT NULL,
    -- How many transactions of this connection are committed. A replica that finds fewer than it acknowledged knows that
    -- the server has lost some.
    commits    bigint NOT NULL DEFAULT 0,
    -- The server's clock, in microseconds: rows of connections that are long gone are removed by it.
    marked_at  bigint NOT NULL
-- Each row is written again and again: room in its page keeps it there.
) WITH (fillfactor = 50);

-- The oldest build that still runs on a schema with this step; where it is null, the one that knows the step.
ALTER TABLE schema_migrations ADD COLUMN oldest_build bigint;
