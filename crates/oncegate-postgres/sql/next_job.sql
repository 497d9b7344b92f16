-- When somebody has to look at the queue next, and the store's time.
--   $1 injected time   $2 kinds
SELECT store_time($1::bigint),
       (SELECT min(next.wakes_at)
        FROM unnest($2::text[]) AS k (kind)
        CROSS JOIN LATERAL (SELECT wakes_at FROM jobs WHERE kind = k.kind ORDER BY wakes_at, id LIMIT 1) AS next)
