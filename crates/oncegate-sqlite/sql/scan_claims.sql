-- Claims newest first, without outcomes, which may be large. `{state}` is a condition on the state at ?2, from a fixed list.
SELECT state, token, version, attempt, lost, lease_us, lease_until, expires_at, created_at, settled_at,
       fingerprint, duplicates, last_duplicate_at, attributes, parts, NULL AS outcome, id, guard
FROM claims
WHERE workspace = ?1
  AND expires_at > ?2
  AND (?3 IS NULL OR guard = ?3)
  AND (token, id) < (?4, ?5)
  AND token >= ?7
  AND {state}
ORDER BY token DESC, id DESC
LIMIT ?6
