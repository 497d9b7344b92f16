-- Gives names to records. Returns the names that were free or belonged to the same record already.
--   $1 workspaces   $2 kinds   $3 names   $4 ids
INSERT INTO record_names (workspace, kind, name, id)
SELECT n.workspace, n.kind, n.name, n.id
FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[]) AS n (workspace, kind, name, id)
ORDER BY n.workspace COLLATE "C", n.kind COLLATE "C", n.name COLLATE "C"
ON CONFLICT (workspace, kind, name) DO UPDATE SET id = record_names.id WHERE record_names.id = excluded.id
RETURNING workspace, id
