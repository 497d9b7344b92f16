-- The token down to which a page looks, if there are more. By the index alone: no claim is read for it.
--   $1 workspace   $2 the token of the page before   $3 how many are looked at
SELECT token FROM claims WHERE workspace = $1::text AND token <= $2::bigint ORDER BY token DESC LIMIT 1 OFFSET $3::bigint
