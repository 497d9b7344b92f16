-- $1 injected time   $2 name
INSERT INTO workspaces (name, created_at) VALUES ($2::text, store_time($1::bigint)) ON CONFLICT (name) DO NOTHING
