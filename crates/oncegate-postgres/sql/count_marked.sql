-- The server's time, and how many transactions a connection has committed. Null where the connection's mark is gone.
--   $1 connection
SELECT store_time(NULL), (SELECT commits FROM commit_marks WHERE connection = $1::uuid)
