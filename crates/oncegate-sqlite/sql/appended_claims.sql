SELECT seq, id, workspace FROM claims WHERE seq > ?1 ORDER BY seq
