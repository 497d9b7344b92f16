-- A compare-and-set: replaces only the version that the decision was made from.
UPDATE claims
SET state = ?5, token = ?6, version = ?7, attempt = ?8, lost = ?9, lease_us = ?10, lease_until = ?11, expires_at = ?12,
    created_at = ?13, settled_at = ?14, fingerprint = ?15, duplicates = ?16, last_duplicate_at = ?17, attributes = ?18,
    parts = ?19, outcome = ?20
WHERE seq = ?1 AND workspace = ?2 AND id = ?3 AND guard = ?4 AND version = ?7 - 1
