-- Adds jobs to the queue, unless a job with the same id exists or their leases have ended. Returns the added ones.
--   $1… one array for each column   $22 injected time   $23 until when each decision is valid
INSERT INTO jobs (workspace, id, kind, payload, state, wakes_at, due_at, token, lease_until, version, tried, tries_max,
                  pause_us, pause_max_us, delivery, reached, created_at, error, begun, lane, started)
SELECT n.workspace, n.id, n.kind, n.payload, n.state, n.wakes_at, n.due_at, n.token, n.lease_until, n.version, n.tried,
       n.tries_max, n.pause_us, n.pause_max_us, n.delivery, n.reached, n.created_at, n.error, n.begun, n.lane, n.started
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bytea[], $5::smallint[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::integer[], $12::integer[], $13::bigint[], $14::bigint[], $15::smallint[],
            $16::smallint[], $17::bigint[], $18::text[], $19::boolean[], $20::text[], $21::boolean[], $23::bigint[])
     AS n (workspace, id, kind, payload, state, wakes_at, due_at, token, lease_until, version, tried, tries_max,
           pause_us, pause_max_us, delivery, reached, created_at, error, begun, lane, started, stands_until)
WHERE store_time($22::bigint) < n.stands_until
ORDER BY n.workspace COLLATE "C", n.id
ON CONFLICT (workspace, id) DO NOTHING
RETURNING workspace, id
