-- How many are in the queue, counted no further than to the limit. `{kind}` is a condition on the kind, from a fixed list.
-- (By the index that knows kinds: in the order of ids it would walk past all others.)
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
