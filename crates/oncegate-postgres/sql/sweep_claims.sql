-- Removes claims whose window has ended, and says how many.
--   $1 injected time   $2 how many at most
--
-- Rows that another transaction is writing are left for the next sweep. A row that was claimed again since the snapshot is checked
-- again once it is locked, and stays. The floor rises in the same transaction: a caller that no longer sees a record sees its token in
-- the floor. Every sweeper locks all its rows before it locks the floor.
WITH ended AS MATERIALIZED (
    SELECT workspace, id
    FROM claims
    WHERE expires_at <= (SELECT store_time($1::bigint))
    ORDER BY expires_at
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM claims AS c USING ended AS e
    WHERE c.workspace = e.workspace AND c.id = e.id
    RETURNING c.token
), raised AS (
    UPDATE meta SET token_floor = greatest(token_floor, (SELECT max(token) FROM gone))
    WHERE only_row AND token_floor < (SELECT max(token) FROM gone)
)
SELECT count(*) FROM gone
