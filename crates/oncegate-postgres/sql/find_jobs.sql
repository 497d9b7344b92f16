-- Jobs by their ids, with the store's time. Always at least one row.
--   $1 injected time   $2 workspaces   $3 ids
SELECT m.now, k.ord, j.*
FROM (SELECT store_time($1::bigint) AS now OFFSET 0) AS m
LEFT JOIN (
    unnest($2::text[], $3::uuid[]) WITH ORDINALITY AS k (key_workspace, key_id, ord)
    JOIN jobs AS j ON j.workspace = k.key_workspace AND j.id = k.key_id
) ON true
