-- Counts the jobs in the queue, up to the limit. `{kind}` is a condition on the kind, from a fixed list.
-- INDEXED BY the index with kinds: in the order of ids SQLite would walk past all other jobs.
SELECT count(*)
FROM (
    SELECT 1
    FROM jobs INDEXED BY jobs_wake
    WHERE {kind}
      AND workspace = :workspace
      AND id < :before
      AND (:lane_prefix IS NULL OR substr(lane, 1, length(:lane_prefix)) = :lane_prefix)
      AND (:state IS NULL OR state = :state)
      AND (:is_tried IS NULL OR (tried > 0) = :is_tried)
    LIMIT :limit
)
