-- On the owner that was met; and without a new version, since it decides nothing.
UPDATE claims
SET duplicates = duplicates + ?6, last_duplicate_at = max(coalesce(last_duplicate_at, 0), ?7)
WHERE seq = ?1 AND id = ?2 AND workspace = ?3 AND guard = ?4 AND token = ?5
