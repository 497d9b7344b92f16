-- The migration steps that the schema has had, and the oldest build that runs on each. Read through JSON, because a schema older than
-- step 6 has no column for the build.
SELECT version, coalesce((to_jsonb(step) ->> 'oldest_build')::bigint, version) FROM schema_migrations AS step
