-- Marks a claim as awaited, so that the transaction that settles it announces it.
--   $1 workspace   $2 id
--
-- This update waits for the row lock of a settle that is under way. After that settle there is nothing to mark.
UPDATE claims SET awaited = true
WHERE workspace = $1::text AND id = $2::bytea AND state = 0 AND NOT awaited
