-- Of the started jobs of some lanes, the ones that no other transaction is about to dequeue. Locks them, so that no other transaction
-- dequeues them before this one ends. The jobs postponed behind such a job are found when it leaves.
--   $1 workspaces   $2 ids
SELECT j.workspace, j.lane
FROM unnest($1::text[], $2::uuid[]) AS k (workspace, id)
CROSS JOIN LATERAL (
    SELECT j.workspace, j.lane FROM jobs AS j WHERE j.workspace = k.workspace AND j.id = k.id AND j.started
    FOR SHARE SKIP LOCKED
) AS j
