-- Writes to the server's log only, and commits that by itself. When the server acknowledges this COMMIT, every earlier commit is as
-- durable: on the disk, and on the standbys that a COMMIT waits for.
--
-- A transaction that a lookup finds may be committed without that. That happens if the server crashed while its backend waited for a
-- standby, or if an administrator ended that backend.
SELECT pg_logical_emit_message(true, 'oncegate', ''::text)::text
