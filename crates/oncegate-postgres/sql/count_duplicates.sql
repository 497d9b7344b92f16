-- Adds to the duplicate counters of claims that still belong to the owner whom the duplicate met.
--   $1 workspaces   $2 ids   $3 tokens   $4 counts   $5 when last; in the order of the keys, each once
--
-- The version stays: counting must not fence the owner. Rows are locked in the order of their keys.
WITH locked AS MATERIALIZED (
    SELECT n.*
    FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[])
         AS n (workspace, id, token, met, last_at)
    CROSS JOIN LATERAL (
        SELECT c.token FROM claims AS c WHERE c.workspace = n.workspace AND c.id = n.id FOR UPDATE
    ) AS c
    WHERE c.token = n.token
)
UPDATE claims AS c
SET duplicates = c.duplicates + l.met,
    last_duplicate_at = greatest(c.last_duplicate_at, l.last_at)
FROM locked AS l
WHERE c.workspace = l.workspace AND c.id = l.id
