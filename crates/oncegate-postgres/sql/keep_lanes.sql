-- Of those who have started in some lanes, the ones that nobody is just about to take out of the queue; and nobody does, until the
-- end of the transaction. Who is postponed behind one of these is found when it leaves.
--   $1 workspaces   $2 ids
SELECT j.workspace, j.lane
FROM unnest($1::text[], $2::uuid[]) AS k (workspace, id)
CROSS JOIN LATERAL (
    SELECT j.workspace, j.lane FROM jobs AS j WHERE j.workspace = k.workspace AND j.id = k.id AND j.started
    FOR SHARE SKIP LOCKED
) AS j
