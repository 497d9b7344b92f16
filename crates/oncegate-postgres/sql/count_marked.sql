-- The server's time, and how many transactions of a connection are committed; null where its mark is gone.
--   $1 connection
SELECT store_time(NULL), (SELECT commits FROM commit_marks WHERE connection = $1::uuid)
