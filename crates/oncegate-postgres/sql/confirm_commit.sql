-- A write to the server's log and to nothing else, committed by itself. When that is acknowledged, then so is all
-- that was committed before it: by the disk, and by the standbys that a COMMIT waits for.
--
-- A transaction that is looked up may be committed without that: if the server crashed, or somebody ended its
-- backend, while it waited for a standby.
SELECT pg_logical_emit_message(true, 'oncegate', ''::text)::text
