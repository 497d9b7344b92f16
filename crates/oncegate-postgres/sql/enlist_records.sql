-- Puts new records into lists.
--   $1 workspaces   $2 kinds   $3 lists   $4 ids
INSERT INTO record_lists (workspace, kind, list, id)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[])
ON CONFLICT DO NOTHING
RETURNING workspace, id
