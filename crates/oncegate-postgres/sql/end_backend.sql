-- Ends a backend that still holds a transaction whose client is gone, so that it commits or aborts now.
--   $1 backend   $2 transaction
--
-- But not one that waits for a synchronous standby: it has committed, and to end it would only end the wait, and
-- show everybody what a failover may still lose.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE pid = $1::integer AND backend_xid = ($2::text::xid8)::xid AND wait_event IS DISTINCT FROM 'SyncRep'
