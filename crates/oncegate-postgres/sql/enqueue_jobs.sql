-- Puts jobs into the queue, unless there are some with their ids; says which.
--   $1… one array for each column
INSERT INTO jobs (workspace, id, kind, payload, state, wakes_at, due_at, token, lease_until, version, tried, tries_max,
                  pause_us, pause_max_us, delivery, reached, created_at, error)
SELECT n.*
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bytea[], $5::smallint[], $6::bigint[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::integer[], $12::integer[], $13::bigint[], $14::bigint[], $15::smallint[],
            $16::smallint[], $17::bigint[], $18::text[])
     AS n (workspace, id, kind, payload, state, wakes_at, due_at, token, lease_until, version, tried, tries_max,
           pause_us, pause_max_us, delivery, reached, created_at, error)
ORDER BY n.workspace COLLATE "C", n.id
ON CONFLICT (workspace, id) DO NOTHING
RETURNING id
