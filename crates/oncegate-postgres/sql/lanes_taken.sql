-- Who has started in some lanes.
--   $1 workspaces   $2 lanes
SELECT j.workspace, j.lane, j.id
FROM unnest($1::text[], $2::text[]) AS k (workspace, lane)
JOIN jobs AS j ON j.workspace = k.workspace AND j.lane = k.lane
WHERE j.lane IS NOT NULL AND j.started
