-- Somebody waits for this claim: whoever settles it is to say so.
--   $1 workspace   $2 id
--
-- A settle that is under way is waited for by this update's row lock, and then there is nothing to mark.
UPDATE claims SET awaited = true
WHERE workspace = $1::text AND id = $2::bytea AND state = 0 AND NOT awaited
