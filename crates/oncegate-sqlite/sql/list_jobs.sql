-- The jobs in the queue, newest first.
SELECT *
FROM jobs
WHERE workspace = :workspace
  AND id < :before
  AND (:kind IS NULL OR kind = :kind)
  AND (:kind_prefix IS NULL OR substr(kind, 1, length(:kind_prefix)) = :kind_prefix)
  AND (:lane_prefix IS NULL OR substr(lane, 1, length(:lane_prefix)) = :lane_prefix)
  AND (:state IS NULL OR state = :state)
  AND (:is_tried IS NULL OR (tried > 0) = :is_tried)
ORDER BY id DESC
LIMIT :limit
