-- Asked between the writes of a transaction and its COMMIT.
--
-- The id is what the outcome of a COMMIT whose answer got lost is looked up by; the backend is what to
-- end if it hangs. The floor is read again, in a snapshot later than the writes: if a record under one of
-- the created keys came and was swept since the keys were read, this floor is at least its token.
SELECT pg_current_xact_id()::text AS transaction, pg_backend_pid() AS backend, token_floor FROM meta WHERE only_row
