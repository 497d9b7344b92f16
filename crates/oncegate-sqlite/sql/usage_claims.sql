-- What workspaces have in some of the claims, in the order of the file. The length is taken inside: SQLite reads it from the row's
-- header, where it would copy the whole outcome out of a subquery.
SELECT workspace, COUNT(*), SUM(bytes), MAX(seq), SUM(COUNT(*)) OVER ()
FROM (
    SELECT seq, workspace, COALESCE(OCTET_LENGTH(outcome), 0) + COALESCE(OCTET_LENGTH(attributes), 0) + COALESCE(OCTET_LENGTH(parts), 0) AS bytes
    FROM claims WHERE seq > ?1 ORDER BY seq LIMIT ?2
)
GROUP BY workspace
