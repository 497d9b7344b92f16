-- Records when keys were last used. Ordered by id, so that replicas that touch the same keys cannot deadlock.
--   $1 injected time   $2 ids
WITH used AS (SELECT id FROM api_keys WHERE id = ANY ($2::text[]) ORDER BY id FOR UPDATE)
UPDATE api_keys SET last_used_at = store_time($1::bigint) FROM used WHERE api_keys.id = used.id
