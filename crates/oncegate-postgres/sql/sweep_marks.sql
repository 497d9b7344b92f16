-- Removes the marks of connections that have not written for seven days. A connection that still lives and writes again
-- finds its mark gone, undoes its transaction, and connects anew.
DELETE FROM commit_marks
WHERE connection IN (
    SELECT connection
    FROM commit_marks
    WHERE marked_at < store_time(NULL) - 7 * 86400000000::bigint
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
)
