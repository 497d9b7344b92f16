-- The records in a state, newest first.
SELECT id, version, state, expires_at, body FROM records
WHERE workspace = ?1 AND kind = ?2 AND state = ?6 AND id < ?3 AND id >= ?7 AND ?5 IS NULL
ORDER BY id DESC LIMIT ?4
