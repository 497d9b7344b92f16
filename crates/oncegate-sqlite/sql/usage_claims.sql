-- The usage of workspaces in one part of the claims, in the order of the file. The inner query takes the lengths: there SQLite
-- reads them from the row's header. In the outer query it would copy each whole outcome out of the subquery.
SELECT workspace, COUNT(*), SUM(bytes), MAX(seq), SUM(COUNT(*)) OVER ()
FROM (
    SELECT seq, workspace, COALESCE(OCTET_LENGTH(outcome), 0) + COALESCE(OCTET_LENGTH(attributes), 0) + COALESCE(OCTET_LENGTH(parts), 0) AS bytes
    FROM claims WHERE seq > ?1 ORDER BY seq LIMIT ?2
)
GROUP BY workspace
