-- Runs in the writer's transaction, which found no row for the key; no other writer can come between. A many-row variant exists too.
-- OR FAIL: if a row fails, the whole transaction is rolled back, so SQLite need not keep a journal to undo this statement alone.
-- While there are no duplicates, `last_duplicate_at` equals `created_at`, so that counting duplicates does not change the row's length.
INSERT OR FAIL INTO claims (seq, workspace, id, guard, state, token, version, attempt, lost, lease_us, lease_until, expires_at,
                    created_at, settled_at, fingerprint, duplicates, last_duplicate_at, attributes, parts, outcome)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
