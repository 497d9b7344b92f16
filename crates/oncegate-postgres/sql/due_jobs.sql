-- Jobs that are due or have lost their worker, of each kind in each workspace, longest overdue first, with the store's time. Their rows
-- are locked until the end of the transaction. A job that another worker is leasing at this moment is skipped.
--   $1 injected time   $2 kinds   $3 workspaces   $4 how many of each at most
SELECT store_time($1::bigint) AS now, j.*
FROM unnest($2::text[], $3::text[], $4::bigint[]) AS k (kind, workspace, jobs)
CROSS JOIN LATERAL (
    SELECT j.*
    FROM jobs AS j
    WHERE j.kind = k.kind AND j.workspace = k.workspace AND j.wakes_at <= (SELECT store_time($1::bigint))
    ORDER BY j.wakes_at, j.id
    LIMIT k.jobs
    FOR UPDATE SKIP LOCKED
) AS j
