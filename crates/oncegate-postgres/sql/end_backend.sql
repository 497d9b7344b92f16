-- Ends a backend that still holds a transaction whose client is gone, so that it aborts now.
--   $1 backend   $2 transaction
--
-- Only one that the COMMIT has not reached: it is idle. A backend that is in COMMIT ends by itself, and may wait for a
-- synchronous standby: to end that wait would show every replica what a failover may still lose.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE pid = $1::integer AND backend_xid = ($2::text::xid8)::xid AND state LIKE 'idle in transaction%'
