-- The job whose turn it is in each lane: the started one, or else the first of the others.
--   $1 workspaces   $2 lanes
SELECT k.workspace, k.lane, coalesce(taken.id, first.id), taken.id IS NOT NULL
FROM unnest($1::text[], $2::text[]) AS k (workspace, lane)
LEFT JOIN LATERAL (
    SELECT j.id FROM jobs AS j
    WHERE j.workspace = k.workspace AND j.lane = k.lane AND j.lane IS NOT NULL AND j.started
) AS taken ON true
LEFT JOIN LATERAL (
    SELECT j.id FROM jobs AS j
    WHERE j.workspace = k.workspace AND j.lane = k.lane AND j.lane IS NOT NULL AND NOT j.started
    ORDER BY j.due_at, j.id
    LIMIT 1
) AS first ON true
