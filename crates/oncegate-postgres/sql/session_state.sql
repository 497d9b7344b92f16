-- Identifies the server, and says whether it accepts writes. The name of the log file begins with the timeline, in hexadecimal. A
-- standby has no log file of its own.
SELECT pg_is_in_recovery() AS is_standby,
       current_setting('transaction_read_only') = 'on' AS is_read_only,
       (SELECT system_identifier FROM pg_control_system())::text AS system,
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline,
       extract(epoch FROM pg_postmaster_start_time())::text AS started;
