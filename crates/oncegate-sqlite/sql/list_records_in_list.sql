-- The records in a list, newest first, optionally only those in one state. CROSS JOIN makes the list the outer loop.
SELECT r.id, r.version, r.state, r.expires_at, r.body
FROM record_lists AS l CROSS JOIN records AS r ON r.workspace = l.workspace AND r.kind = l.kind AND r.id = l.id
WHERE l.workspace = ?1 AND l.kind = ?2 AND l.list = ?5 AND l.id < ?3 AND l.id >= ?7 AND (?6 IS NULL OR r.state = ?6)
ORDER BY l.id DESC LIMIT ?4
