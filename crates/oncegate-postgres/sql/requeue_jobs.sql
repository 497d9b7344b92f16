-- Replaces jobs that still have the previous version, if the leases that the decisions were made under have not ended. Returns the
-- replaced ones.
--   $1… one array for each column, as for enqueue_jobs.sql   $22 injected time   $23 until when each decision is valid
WITH locked AS MATERIALIZED (
    SELECT n.*
    FROM (
        SELECT *
        FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bytea[], $5::smallint[], $6::bigint[], $7::bigint[],
                    $8::bigint[], $9::bigint[], $10::bigint[], $11::integer[], $12::integer[], $13::bigint[],
                    $14::bigint[], $15::smallint[], $16::smallint[], $17::bigint[], $18::text[], $19::boolean[], $20::text[], $21::boolean[],
                    $23::bigint[])
             AS n (workspace, id, kind, payload, state, wakes_at, due_at, token, lease_until, version, tried, tries_max,
                   pause_us, pause_max_us, delivery, reached, created_at, error, begun, lane, started, stands_until)
        ORDER BY n.workspace COLLATE "C", n.id
    ) AS n
    CROSS JOIN LATERAL (
        SELECT j.version FROM jobs AS j WHERE j.workspace = n.workspace AND j.id = n.id FOR UPDATE
    ) AS j
    WHERE j.version = n.version - 1 AND store_time($22::bigint) < n.stands_until
)
UPDATE jobs AS j
SET kind = l.kind, payload = l.payload, state = l.state, wakes_at = l.wakes_at, due_at = l.due_at, token = l.token,
    lease_until = l.lease_until, version = l.version, tried = l.tried, tries_max = l.tries_max, pause_us = l.pause_us,
    pause_max_us = l.pause_max_us, delivery = l.delivery, reached = l.reached, created_at = l.created_at,
    error = l.error, begun = l.begun, lane = l.lane, started = l.started
FROM locked AS l
WHERE j.workspace = l.workspace AND j.id = l.id
RETURNING j.workspace, j.id
