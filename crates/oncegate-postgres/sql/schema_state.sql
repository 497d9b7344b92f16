-- Whether the schema and its list of steps are there, and as whom we would create them.
--   $1 schema
SELECT to_regnamespace($1::text) IS NOT NULL, to_regclass('schema_migrations') IS NOT NULL, current_user::text
