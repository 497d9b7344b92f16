-- The one down to which a page of a list looks, if there are as many. By the index alone: no record is read for it.
--   $1 workspace   $2 kind   $3 list   $4 older than this one   $5 how many are looked at
SELECT id FROM record_lists
WHERE workspace = $1::text AND kind = $2::text AND list = $3::text AND id < $4::uuid
ORDER BY id DESC LIMIT 1 OFFSET $5::bigint - 1
