-- Removes jobs from the queue if they still have this version and their leases have not ended. Returns the removed ones.
--   $1 injected time   $2 workspaces   $3 ids   $4 versions   $5 until when each decision is valid
WITH locked AS MATERIALIZED (
    SELECT n.*
    FROM (
        SELECT * FROM unnest($2::text[], $3::uuid[], $4::bigint[], $5::bigint[])
             AS n (workspace, id, version, stands_until)
        ORDER BY n.workspace COLLATE "C", n.id
    ) AS n
    CROSS JOIN LATERAL (
        SELECT j.version FROM jobs AS j WHERE j.workspace = n.workspace AND j.id = n.id FOR UPDATE
    ) AS j
    WHERE j.version = n.version AND store_time($1::bigint) < n.stands_until
)
DELETE FROM jobs AS j USING locked AS l
WHERE j.workspace = l.workspace AND j.id = l.id
RETURNING j.workspace, j.id
