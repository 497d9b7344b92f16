-- Records newest first: all records of a kind, or only the records in one state.
--   $1 workspace   $2 kind   $3 state   $4 older than this one   $5 how many at most
SELECT id, version, state, expires_at, body FROM records
WHERE workspace = $1::text AND kind = $2::text AND ($3::text IS NULL OR state = $3::text) AND id < $4::uuid
ORDER BY id DESC LIMIT $5::bigint
