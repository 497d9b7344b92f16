-- The usage of workspaces in one part of the records.
SELECT workspace, COUNT(*), SUM(bytes), MAX(seq), SUM(COUNT(*)) OVER ()
FROM (SELECT rowid AS seq, workspace, OCTET_LENGTH(body) AS bytes FROM records WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)
GROUP BY workspace
