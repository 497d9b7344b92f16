SELECT rowid, token FROM claims WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2
