-- Removes records that still have this version, and returns the removed ones.
--   $1 workspaces   $2 kinds   $3 ids   $4 versions
WITH locked AS MATERIALIZED (
    SELECT n.*
    FROM (
        SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[]) AS n (workspace, kind, id, version)
        ORDER BY n.workspace COLLATE "C", n.kind COLLATE "C", n.id
    ) AS n
    CROSS JOIN LATERAL (
        SELECT r.version FROM records AS r
        WHERE r.workspace = n.workspace AND r.kind = n.kind AND r.id = n.id
        FOR UPDATE
    ) AS r
    WHERE r.version = n.version
)
DELETE FROM records AS r USING locked AS l
WHERE r.workspace = l.workspace AND r.kind = l.kind AND r.id = l.id
RETURNING r.workspace, r.id
