-- What people call a key, who made it, when it ends, and when it was last used. The build before still runs on this step: it ignores
-- the end of a key, so a key with an end is safe to rely on once every replica has been upgraded.
ALTER TABLE api_keys ADD COLUMN name text;
ALTER TABLE api_keys ADD COLUMN created_by text;
ALTER TABLE api_keys ADD COLUMN expires_at bigint;
ALTER TABLE api_keys ADD COLUMN last_used_at bigint;
