-- Removes deleted records from their lists.
--   $1 workspaces   $2 kinds   $3 lists   $4 ids
DELETE FROM record_lists AS r
USING unnest($1::text[], $2::text[], $3::text[], $4::uuid[]) AS n (workspace, kind, list, id)
WHERE r.workspace = n.workspace AND r.kind = n.kind AND r.list = n.list AND r.id = n.id
RETURNING r.workspace, r.id
