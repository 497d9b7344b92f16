-- Runs between the writes of a transaction and its COMMIT.
--   $1 connection   $2 commit id
--
-- The commit id proves later that exactly this transaction is committed. No row means that the connection's mark is gone. Then the
-- transaction must not be committed. The transaction's id and the backend say what to end if COMMIT hangs.
--
-- The token floor is read again, in a snapshot later than the writes. If a record under one of the created keys was created and swept
-- since the keys were read, this floor is at least its token.
WITH marked AS (
    UPDATE commit_marks
    SET commit_id = $2::uuid, commits = commits + 1, marked_at = store_time(NULL)
    WHERE connection = $1::uuid
    RETURNING commits, marked_at
)
SELECT pg_current_xact_id()::text AS transaction, pg_backend_pid() AS backend, token_floor, marked.commits,
       marked.marked_at
FROM meta, marked
WHERE only_row
