-- Whether the schema and its list of migration steps exist, and the role that would create them.
--   $1 schema
SELECT to_regnamespace($1::text) IS NOT NULL, to_regclass('schema_migrations') IS NOT NULL, current_user::text
