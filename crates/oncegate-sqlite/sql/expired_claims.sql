SELECT seq, token, id, workspace FROM claims WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2
