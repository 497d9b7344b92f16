-- Ends a backend that still holds a transaction whose client is gone, so that it aborts now.
--   $1 backend   $2 transaction
--
-- Ends only a backend that the COMMIT has not reached: that backend is idle. A backend in COMMIT ends by itself, and may be waiting for
-- a synchronous standby. Ending that wait would show every replica a commit that a failover may still lose.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE pid = $1::integer AND backend_xid = ($2::text::xid8)::xid AND state LIKE 'idle in transaction%'
