-- Adds a key if its workspace is there.
--   $1 injected time   $2 workspace   $3 id   $4 role   $5 hash   $6 revoked at
INSERT INTO api_keys (workspace, id, role, hash, created_at, revoked_at)
SELECT name, $3::text, $4::text, $5::bytea, store_time($1::bigint), $6::bigint
FROM workspaces
WHERE name = $2::text
