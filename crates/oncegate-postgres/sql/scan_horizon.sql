-- The oldest token that a page looks at, if there are more. Uses the index only and reads no claim.
--   $1 workspace   $2 the token of the page before   $3 how many are looked at
SELECT token FROM claims WHERE workspace = $1::text AND token <= $2::bigint ORDER BY token DESC LIMIT 1 OFFSET $3::bigint
