-- The commit id in a connection's mark, if no open transaction holds the mark.
--   $1 connection
--
-- A null id while the mark exists means that the transaction is still open. SKIP LOCKED instead of a wait lets the caller end a
-- transaction that would stay open. A standby refuses the lock, so only a server that accepts writes answers.
WITH mark AS (
    SELECT commit_id FROM commit_marks WHERE connection = $1::uuid FOR UPDATE SKIP LOCKED
)
SELECT (SELECT commit_id FROM mark) AS commit_id,
       EXISTS (SELECT FROM commit_marks WHERE connection = $1::uuid) AS is_there
