-- Adds an API key if its workspace exists.
--   $1 injected time   $2 workspace   $3 id   $4 role   $5 hash   $6 revoked at   $7 name   $8 created by   $9 expires at
INSERT INTO api_keys (workspace, id, role, hash, created_at, revoked_at, name, created_by, expires_at)
SELECT workspaces.name, $3::text, $4::text, $5::bytea, store_time($1::bigint), $6::bigint, $7::text, $8::text, $9::bigint
FROM workspaces
WHERE workspaces.name = $2::text
