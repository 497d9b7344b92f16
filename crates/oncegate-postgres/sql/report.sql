-- The server's version and the settings that matter for durability.
--   $1 injected time
SELECT store_time($1::bigint) AS now,
       current_setting('server_version') AS version,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS standbys,
       (SELECT max(version) FROM schema_migrations) AS schema_version
