-- What is due, or has lost its worker, longest overdue first, with the store's time; locked until the end of the transaction. What
-- another worker is just leasing is left to it.
--   $1 injected time   $2 kinds   $3 how many at most
SELECT store_time($1::bigint) AS now, j.*
FROM jobs AS j
WHERE kind = ANY ($2::text[]) AND wakes_at <= (SELECT store_time($1::bigint))
ORDER BY wakes_at, id
LIMIT $3::bigint
FOR UPDATE SKIP LOCKED
