-- What somebody has to look at first, due or not.
SELECT * FROM jobs WHERE kind = ?1 ORDER BY wakes_at, id LIMIT ?2
