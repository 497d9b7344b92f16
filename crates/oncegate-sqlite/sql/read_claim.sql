-- The claim in a row, expired or not (an expired one still holds the last token), if it belongs to this key.
-- The id's hash covers the guard; the guard is compared for callers that pass an id and a guard.
SELECT state, token, version, attempt, lost, lease_us, lease_until, expires_at, created_at, settled_at,
       fingerprint, duplicates, last_duplicate_at, attributes, parts, outcome
FROM claims
WHERE seq = ?1 AND id = ?2 AND workspace = ?3 AND guard = ?4
