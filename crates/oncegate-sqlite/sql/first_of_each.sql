-- Each workspace that has jobs of a kind, with the earliest time at which a worker must look at one. The recursion steps from one
-- workspace to the next by the index: one step for each workspace, however many jobs it has.
WITH RECURSIVE next (workspace) AS (
    SELECT min(workspace) FROM jobs WHERE kind = ?1
    UNION ALL
    SELECT (SELECT min(j.workspace) FROM jobs AS j WHERE j.kind = ?1 AND j.workspace > next.workspace)
    FROM next
    WHERE next.workspace IS NOT NULL
)
SELECT workspace, (SELECT min(j.wakes_at) FROM jobs AS j WHERE j.kind = ?1 AND j.workspace = next.workspace)
FROM next
WHERE workspace IS NOT NULL
