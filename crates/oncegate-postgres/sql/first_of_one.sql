-- The job that is due first, of each kind, in one workspace, with the store's time. Always at least one row.
--   $1 injected time   $2 kinds   $3 workspace
SELECT m.now, f.kind, f.workspace, f.wakes_at
FROM (SELECT store_time($1::bigint) AS now OFFSET 0) AS m
LEFT JOIN (
    SELECT k.kind, j.workspace, j.wakes_at
    FROM unnest($2::text[]) AS k (kind)
    CROSS JOIN LATERAL (
        SELECT j.workspace, j.wakes_at FROM jobs AS j WHERE j.kind = k.kind AND j.workspace = $3::text
        ORDER BY j.wakes_at, j.id LIMIT 1
    ) AS j
) AS f ON true
