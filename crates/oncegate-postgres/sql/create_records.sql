-- Creates records where there are none, and returns the created ones.
--   $1 workspaces   $2 kinds   $3 ids   $4 versions   $5 states   $6 ends   $7 bodies
-- Ordered by primary key, so that two replicas wait for each other in one direction only.
INSERT INTO records (workspace, kind, id, version, state, expires_at, body)
SELECT n.workspace, n.kind, n.id, n.version, n.state, n.expires_at, n.body
FROM unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[])
     AS n (workspace, kind, id, version, state, expires_at, body)
ORDER BY n.workspace COLLATE "C", n.kind COLLATE "C", n.id
ON CONFLICT (workspace, kind, id) DO NOTHING
RETURNING workspace, id
