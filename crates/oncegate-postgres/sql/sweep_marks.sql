-- Removes the marks of connections that have not written for seven days. If such a connection is still open and writes again, it finds
-- its mark gone, undoes its transaction, and connects again.
DELETE FROM commit_marks
WHERE connection IN (
    SELECT connection
    FROM commit_marks
    WHERE marked_at < store_time(NULL) - 7 * 86400000000::bigint
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
)
