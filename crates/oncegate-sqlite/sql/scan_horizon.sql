-- The token down to which a page looks. By the index alone: no claim is read for it.
SELECT token FROM claims WHERE workspace = ?1 AND token <= ?2 ORDER BY token DESC LIMIT 1 OFFSET ?3
