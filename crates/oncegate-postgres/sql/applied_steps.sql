-- The steps that the schema has had, and the oldest build that runs on each. By way of JSON, since a schema of before step 6
-- has no column for it.
SELECT version, coalesce((to_jsonb(step) ->> 'oldest_build')::bigint, version) FROM schema_migrations AS step
