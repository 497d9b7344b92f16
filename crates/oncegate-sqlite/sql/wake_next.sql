-- Wakes the first job that waits for a group (`lane`).
UPDATE jobs
SET wakes_at = due_at, version = version + 1
WHERE (id, workspace) = (
    SELECT id, workspace
    FROM jobs
    WHERE workspace = ?1 AND lane = ?2 AND lane IS NOT NULL AND state = 'pending' AND wakes_at > due_at
    ORDER BY due_at, id
    LIMIT 1
)
