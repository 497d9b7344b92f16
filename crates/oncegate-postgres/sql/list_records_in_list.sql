-- The records in a list, newest first; if a state is given, only the records in that state.
--   $1 workspace   $2 kind   $3 state   $4 older than this one   $5 how many at most   $6 list   $7 down to this one
--
-- The list leads, and each record is read by its key. OFFSET 0 keeps that plan. Otherwise the planner would go through all records of a
-- kind or state before it has seen how long the list is.
SELECT r.id, r.version, r.state, r.expires_at, r.body
FROM record_lists AS l
CROSS JOIN LATERAL (
    SELECT r.id, r.version, r.state, r.expires_at, r.body FROM records AS r
    WHERE r.workspace = l.workspace AND r.kind = l.kind AND r.id = l.id OFFSET 0
) AS r
WHERE l.workspace = $1::text AND l.kind = $2::text AND l.list = $6::text AND l.id < $4::uuid AND l.id >= $7::uuid
  AND ($3::text IS NULL OR r.state = $3::text)
ORDER BY l.id DESC LIMIT $5::bigint
