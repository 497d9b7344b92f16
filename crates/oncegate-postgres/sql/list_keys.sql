SELECT id, workspace, role, hash, created_at, revoked_at, name, created_by, expires_at, last_used_at
FROM api_keys
ORDER BY created_at, id
