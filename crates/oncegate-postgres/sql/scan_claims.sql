-- One page of a workspace's claims, newest first, and one claim more, if there is one. Outcomes are left out, because they may be
-- large.
-- Always at least one row, for the time: where there is no claim, `token` is null.
--   $1 injected time   $2 workspace   $3 guard   $4 state   $5 token, $6 id of the page before   $7 limit
--   $8 the oldest token that the page looks at; null means all
--
-- The state is the one that a caller sees: a claim in flight that must not be taken over becomes unknown when its lease ends.
WITH m AS MATERIALIZED (SELECT store_time($1::bigint) AS now)
SELECT m.now, c.*
FROM m
LEFT JOIN LATERAL (
    SELECT c.token, c.version, c.lease_us, c.lease_until, c.expires_at, c.created_at, c.settled_at,
           c.duplicates, c.last_duplicate_at, c.attempt, c.state, c.lost,
           c.fingerprint, c.attributes, c.parts, NULL::bytea AS outcome, c.guard, c.id
    FROM claims AS c
    WHERE c.workspace = $2::text
      -- `+ 0` avoids the sweeper's index, which contains nearly all claims.
      AND c.expires_at + 0 > m.now
      AND ($3::text IS NULL OR c.guard = $3::text)
      AND ($4::smallint IS NULL
           OR $4::smallint = CASE WHEN c.state = 0 AND c.lost = 1 AND c.lease_until <= m.now THEN 3 ELSE c.state END)
      AND ($4::smallint IS DISTINCT FROM 3 OR c.attention)
      AND ($5::bigint IS NULL OR c.token <= $5::bigint)
      AND ($8::bigint IS NULL OR c.token >= $8::bigint)
      AND ($5::bigint IS NULL OR (c.token, c.id) < ($5::bigint, $6::bytea))
    ORDER BY c.token DESC, c.id DESC
    LIMIT $7::bigint
) AS c ON true
