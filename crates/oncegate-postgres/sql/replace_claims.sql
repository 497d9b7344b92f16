-- Replaces records that have not changed since they were read. Returns their places in the arrays.
--   $1 injected time   $2 channel   $3… one array for each field, in the order of the keys
--
-- `locked` takes the rows one after the other in the order of their keys (LATERAL with FOR UPDATE cannot be reordered), so that two
-- replicas wait for each other in one direction only. Token and version together identify what was read, because versions start again
-- after a record has been swept.
-- A decision that is no longer valid (the lease ended while the process was stopped) is not written.
--
-- Columns that other callers write while the owner works (`duplicates`, `awaited`) keep their current values, not the values that were
-- read, unless a new first owner starts from the beginning. Only an awaited claim is announced, because a NOTIFY takes a lock at commit
-- that every other NOTIFY queues for.
WITH locked AS MATERIALIZED (
    SELECT w.*, w.announce AND c.awaited AS announced
    FROM unnest($3::text[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[], $9::boolean[],
                $10::smallint[], $11::bigint[], $12::bigint[], $13::integer[], $14::smallint[], $15::bigint[],
                $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::text[], $21::text[], $22::text[],
                $23::bytea[])
         WITH ORDINALITY AS w (workspace, id, token_was, version_was, stands_until, new_owner, announce,
                               state, token, version, attempt, lost, lease_us,
                               lease_until, expires_at, created_at, settled_at, fingerprint, attributes, parts,
                               outcome, ord)
    CROSS JOIN LATERAL (
        SELECT c.token, c.version, c.awaited
        FROM claims AS c
        WHERE c.workspace = w.workspace AND c.id = w.id
        FOR UPDATE
    ) AS c
    WHERE c.token = w.token_was AND c.version = w.version_was AND store_time($1::bigint) < w.stands_until
), written AS (
    UPDATE claims AS c
    SET state = l.state,
        token = l.token,
        version = l.version,
        attempt = l.attempt,
        lost = l.lost,
        lease_us = l.lease_us,
        lease_until = l.lease_until,
        expires_at = l.expires_at,
        created_at = l.created_at,
        settled_at = l.settled_at,
        outcome = l.outcome,
        fingerprint = CASE WHEN l.new_owner THEN l.fingerprint ELSE c.fingerprint END,
        attributes = CASE WHEN l.new_owner THEN l.attributes ELSE c.attributes END,
        parts = CASE WHEN l.new_owner THEN l.parts ELSE c.parts END,
        duplicates = CASE WHEN l.new_owner AND l.attempt = 1 THEN 0 ELSE c.duplicates END,
        last_duplicate_at = CASE WHEN l.new_owner AND l.attempt = 1 THEN NULL ELSE c.last_duplicate_at END,
        awaited = c.awaited AND NOT l.announce
    FROM locked AS l
    WHERE c.workspace = l.workspace AND c.id = l.id
    RETURNING l.ord, l.announced, c.workspace, c.id
)
SELECT ord, CASE WHEN announced THEN pg_notify($2::text, workspace || ' ' || encode(id, 'hex'))::text END
FROM written
