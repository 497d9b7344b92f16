-- $1 injected time   $2 id
UPDATE api_keys SET revoked_at = store_time($1::bigint) WHERE id = $2::text AND revoked_at IS NULL
