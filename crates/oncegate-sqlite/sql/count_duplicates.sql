-- On the owner that was met; and without a new version, since it decides nothing.
UPDATE claims
SET duplicates = duplicates + ?5, last_duplicate_at = max(coalesce(last_duplicate_at, 0), ?6)
WHERE workspace = ?1 AND id = ?2 AND guard = ?3 AND token = ?4
