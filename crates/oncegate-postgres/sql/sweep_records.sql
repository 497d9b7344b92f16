-- Removes records that are past their end, with all of their names and lists, and says how many.
--   $1 injected time   $2 how many at most
--
-- The sweep never waits, so it cannot take part in a deadlock. A record is left for the next sweep if another transaction is writing it
-- or holds one of its names. A record whose end was moved since the snapshot is checked again once it is locked, and stays. Names and
-- lists are as in the snapshot. If the record has another version by then, they may be incomplete, so that record stays for the next
-- sweep, too.
WITH ended AS MATERIALIZED (
    SELECT workspace, kind, id, version
    FROM records
    WHERE expires_at <= (SELECT store_time($1::bigint))
    ORDER BY expires_at
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
), held AS MATERIALIZED (
    SELECT n.workspace, n.kind, n.id
    FROM ended AS e
    CROSS JOIN LATERAL (
        SELECT n.workspace, n.kind, n.id
        FROM record_names AS n
        WHERE n.id = e.id AND n.workspace = e.workspace AND n.kind = e.kind
        FOR UPDATE SKIP LOCKED
    ) AS n
), ours AS MATERIALIZED (
    SELECT e.workspace, e.kind, e.id
    FROM ended AS e
    JOIN records AS r ON r.workspace = e.workspace AND r.kind = e.kind AND r.id = e.id AND r.version = e.version
    WHERE (SELECT count(*) FROM held AS h WHERE h.id = e.id AND h.workspace = e.workspace AND h.kind = e.kind)
        = (SELECT count(*) FROM record_names AS n WHERE n.id = e.id AND n.workspace = e.workspace AND n.kind = e.kind)
), unnamed AS (
    DELETE FROM record_names AS n USING ours AS o
    WHERE n.id = o.id AND n.workspace = o.workspace AND n.kind = o.kind
), unlisted AS (
    DELETE FROM record_lists AS l USING ours AS o
    WHERE l.id = o.id AND l.workspace = o.workspace AND l.kind = o.kind
), gone AS (
    DELETE FROM records AS r USING ours AS o
    WHERE r.workspace = o.workspace AND r.kind = o.kind AND r.id = o.id
    RETURNING r.id
)
SELECT count(*) FROM gone
