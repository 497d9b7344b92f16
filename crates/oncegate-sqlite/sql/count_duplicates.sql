-- Counts up only the owner that the duplicates met. The version stays, because a count decides nothing. Among rows with the same hash
-- the token alone selects the row: the counts are for people, and comparing texts would be a third of the cost of counting.
-- While there are no duplicates, `last_duplicate_at` has no meaning.
UPDATE claims
SET duplicates = duplicates + ?3,
    last_duplicate_at = CASE WHEN duplicates = 0 THEN ?4 ELSE max(coalesce(last_duplicate_at, 0), ?4) END
WHERE seq = ?1 AND token = ?2
