-- Ends the postponement of the first waiting job of each lane, so that it wakes at its due time.
--   $1 workspaces   $2 lanes
WITH next AS MATERIALIZED (
    SELECT j.workspace, j.id
    FROM (
        SELECT DISTINCT k.workspace COLLATE "C" AS workspace, k.lane COLLATE "C" AS lane
        FROM unnest($1::text[], $2::text[]) AS k (workspace, lane)
        ORDER BY 1, 2
    ) AS k
    CROSS JOIN LATERAL (
        SELECT j.workspace, j.id
        FROM jobs AS j
        WHERE j.workspace = k.workspace AND j.lane = k.lane AND j.lane IS NOT NULL AND j.state = 0
          AND j.wakes_at > j.due_at
        ORDER BY j.due_at, j.id
        LIMIT 1
        FOR UPDATE
    ) AS j
)
UPDATE jobs AS j
SET wakes_at = j.due_at, version = j.version + 1
FROM next AS n
WHERE j.workspace = n.workspace AND j.id = n.id
RETURNING j.workspace, j.id
