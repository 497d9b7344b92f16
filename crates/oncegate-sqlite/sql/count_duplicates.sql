-- On the owner that was met; and without a new version, since it decides nothing. While there are no duplicates `last_duplicate_at` says nothing.
UPDATE claims
SET duplicates = duplicates + ?6,
    last_duplicate_at = CASE WHEN duplicates = 0 THEN ?7 ELSE max(coalesce(last_duplicate_at, 0), ?7) END
WHERE seq = ?1 AND id = ?2 AND workspace = ?3 AND guard = ?4 AND token = ?5
