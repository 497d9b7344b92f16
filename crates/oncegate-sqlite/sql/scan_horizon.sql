-- The smallest token that a page examines. It uses the index alone and reads no claim.
SELECT token FROM claims WHERE workspace = ?1 AND token <= ?2 ORDER BY token DESC LIMIT 1 OFFSET ?3
