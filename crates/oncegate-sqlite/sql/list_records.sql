-- All records of a kind, newest first.
SELECT id, version, state, expires_at, body FROM records
WHERE workspace = ?1 AND kind = ?2 AND id < ?3 AND id >= ?7 AND ?5 IS NULL AND ?6 IS NULL
ORDER BY id DESC LIMIT ?4
