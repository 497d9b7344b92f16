-- Frees the names of deleted records.
--   $1 workspaces   $2 kinds   $3 names   $4 ids
DELETE FROM record_names AS r
USING unnest($1::text[], $2::text[], $3::text[], $4::uuid[]) AS n (workspace, kind, name, id)
WHERE r.workspace = n.workspace AND r.kind = n.kind AND r.name = n.name AND r.id = n.id
RETURNING r.workspace, r.id
