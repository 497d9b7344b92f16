-- On the owner that was met; and without a new version, since it decides nothing. Of rows with the same hash the token tells which one it is: these are counts for
-- people, and texts to compare would be a third of what counting costs. While there are no duplicates `last_duplicate_at` says nothing.
UPDATE claims
SET duplicates = duplicates + ?3,
    last_duplicate_at = CASE WHEN duplicates = 0 THEN ?4 ELSE max(coalesce(last_duplicate_at, 0), ?4) END
WHERE seq = ?1 AND token = ?2
