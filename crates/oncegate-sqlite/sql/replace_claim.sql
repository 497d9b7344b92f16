-- Only the version that the decision was made from is replaced.
UPDATE claims
SET state = ?4, token = ?5, version = ?6, attempt = ?7, lost = ?8, lease_us = ?9, lease_until = ?10, expires_at = ?11,
    created_at = ?12, settled_at = ?13, fingerprint = ?14, duplicates = ?15, last_duplicate_at = ?16, attributes = ?17,
    parts = ?18, outcome = ?19
WHERE workspace = ?1 AND id = ?2 AND guard = ?3 AND version = ?6 - 1
