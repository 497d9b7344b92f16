-- Replaces records that still have the previous version, and returns the replaced ones.
--   $1 workspaces   $2 kinds   $3 ids   $4 versions   $5 states   $6 ends   $7 bodies
-- Locked one after the other in the order of their primary keys (LATERAL with FOR UPDATE cannot be reordered).
WITH locked AS MATERIALIZED (
    SELECT n.*
    FROM (
        SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[])
             AS n (workspace, kind, id, version, state, expires_at, body)
        ORDER BY n.workspace COLLATE "C", n.kind COLLATE "C", n.id
    ) AS n
    CROSS JOIN LATERAL (
        SELECT r.version FROM records AS r
        WHERE r.workspace = n.workspace AND r.kind = n.kind AND r.id = n.id
        FOR UPDATE
    ) AS r
    WHERE r.version = n.version - 1
)
UPDATE records AS r
SET version = l.version, state = l.state, expires_at = l.expires_at, body = l.body
FROM locked AS l
WHERE r.workspace = l.workspace AND r.kind = l.kind AND r.id = l.id
RETURNING r.workspace, r.id
