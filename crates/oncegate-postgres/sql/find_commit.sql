-- The commit id in a connection's mark, once no transaction holds the mark any more.
--   $1 connection
--
-- A null id beside a mark that is there: the transaction is still open. SKIP LOCKED and not a wait, so that the caller
-- can end a transaction that would stay open. A standby refuses the lock: only a server that can be written to answers.
WITH mark AS (
    SELECT commit_id FROM commit_marks WHERE connection = $1::uuid FOR UPDATE SKIP LOCKED
)
SELECT (SELECT commit_id FROM mark) AS commit_id,
       EXISTS (SELECT FROM commit_marks WHERE connection = $1::uuid) AS is_there
