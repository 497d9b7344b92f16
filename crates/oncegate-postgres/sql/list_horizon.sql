-- The oldest entry that a page of a list looks at; no row if the list has fewer. Uses the index only and reads no record.
--   $1 workspace   $2 kind   $3 list   $4 older than this one   $5 how many are looked at
SELECT id FROM record_lists
WHERE workspace = $1::text AND kind = $2::text AND list = $3::text AND id < $4::uuid
ORDER BY id DESC LIMIT 1 OFFSET $5::bigint - 1
