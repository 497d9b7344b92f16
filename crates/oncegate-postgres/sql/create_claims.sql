-- Creates records under keys that have none, and returns the created ones. The unique key decides the race: where no row is returned,
-- another caller was first.
--   $1 injected time   $2… one array for each column, in the order of the keys
--
-- A claim whose lease ends before this statement runs is not written. That happens if the process was stopped in between.
-- Rows are inserted in the order of their keys, so that two replicas wait for each other in one direction only.
INSERT INTO claims (workspace, id, guard, token, lost, lease_us, lease_until, expires_at, created_at,
                    fingerprint, attributes, parts, state, settled_at, outcome)
SELECT n.workspace, n.id, n.guard, n.token, n.lost, n.lease_us, n.lease_until, n.expires_at, n.created_at,
       n.fingerprint, n.attributes, n.parts, n.state, n.settled_at, n.outcome
FROM unnest($2::text[], $3::bytea[], $4::text[], $5::bigint[], $6::smallint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::smallint[], $15::bigint[],
            $16::bytea[], $17::bigint[])
     WITH ORDINALITY AS n (workspace, id, guard, token, lost, lease_us, lease_until, expires_at, created_at,
                           fingerprint, attributes, parts, state, settled_at, outcome, stands_until, ord)
WHERE store_time($1::bigint) < n.stands_until
ORDER BY n.ord
ON CONFLICT (workspace, id) DO NOTHING
RETURNING workspace, id
