-- For each of some kinds and each workspace with such jobs, the job that is due first, with the store's time. The index leads from one
-- workspace to the next, so the number of steps is the number of workspaces, however many jobs wait. Always at least one row.
--   $1 injected time   $2 kinds
SELECT m.now, f.kind, f.workspace, f.wakes_at
FROM (SELECT store_time($1::bigint) AS now OFFSET 0) AS m
LEFT JOIN (
    SELECT k.kind, w.workspace, j.wakes_at
    FROM unnest($2::text[]) AS k (kind)
    CROSS JOIN LATERAL (
        WITH RECURSIVE next (workspace) AS (
            (SELECT j.workspace FROM jobs AS j WHERE j.kind = k.kind ORDER BY j.workspace LIMIT 1)
            UNION ALL
            SELECT after.workspace
            FROM next AS n
            CROSS JOIN LATERAL (
                SELECT j.workspace FROM jobs AS j WHERE j.kind = k.kind AND j.workspace > n.workspace
                ORDER BY j.workspace LIMIT 1
            ) AS after
        )
        SELECT workspace FROM next
    ) AS w
    CROSS JOIN LATERAL (
        SELECT j.wakes_at FROM jobs AS j WHERE j.kind = k.kind AND j.workspace = w.workspace
        ORDER BY j.wakes_at, j.id LIMIT 1
    ) AS j
) AS f ON true
