-- The records under some keys, with the store's time and the token floor of the same snapshot.
-- Always at least one row: where no key has a record, `ord` is null.
--   $1 injected time   $2 workspaces   $3 ids   $4 guards
--
-- The guard is part of the id already. A caller that names another guard has made a mistake, and finds nothing.
--
-- The record is looked up for one key after the other (LATERAL, and OFFSET 0 so that the planner keeps it so): one probe of the primary
-- key each, whatever the planner believes about the table's size.
SELECT m.now, m.token_floor, c.*
FROM (SELECT store_time($1::bigint) AS now, token_floor FROM meta WHERE only_row OFFSET 0) AS m
LEFT JOIN (
    SELECT k.ord, c.*
    FROM unnest($2::text[], $3::bytea[], $4::text[]) WITH ORDINALITY AS k (workspace, id, guard, ord)
    CROSS JOIN LATERAL (
        SELECT c.token, c.version, c.lease_us, c.lease_until, c.expires_at, c.created_at, c.settled_at,
               c.duplicates, c.last_duplicate_at, c.attempt, c.state, c.lost,
               c.fingerprint, c.attributes, c.parts, c.outcome, c.guard
        FROM claims AS c
        WHERE c.workspace = k.workspace AND c.id = k.id AND c.guard = k.guard
        OFFSET 0
    ) AS c
) AS c ON true
