-- The records at some places, each by its id or by one of its names, with the store's time. Always at least one row.
--   $1 injected time   $2 workspaces   $3 kinds   $4 ids   $5 names
SELECT m.now, r.ord, r.id, r.version, r.state, r.expires_at, r.body
FROM (SELECT store_time($1::bigint) AS now OFFSET 0) AS m
LEFT JOIN (
    SELECT k.ord, r.*
    FROM unnest($2::text[], $3::text[], $4::uuid[], $5::text[]) WITH ORDINALITY AS k (workspace, kind, id, name, ord)
    CROSS JOIN LATERAL (
        SELECT r.id, r.version, r.state, r.expires_at, r.body
        FROM records AS r
        WHERE r.workspace = k.workspace AND r.kind = k.kind
          AND r.id = coalesce(k.id, (
                SELECT n.id FROM record_names AS n
                WHERE n.workspace = k.workspace AND n.kind = k.kind AND n.name = k.name))
        OFFSET 0
    ) AS r
) AS r ON true
