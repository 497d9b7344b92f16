-- Within the writer's transaction, where it was found that the key has no row; nobody else writes meanwhile. The writer has it for many rows too.
-- If one of them fails nothing of the transaction stays, so nothing has to be kept for undoing the statement alone: hence OR FAIL.
-- `last_duplicate_at` is that of `created_at` while there are no duplicates, so that counting them changes no row's length.
INSERT OR FAIL INTO claims (seq, workspace, id, guard, state, token, version, attempt, lost, lease_us, lease_until, expires_at,
                    created_at, settled_at, fingerprint, duplicates, last_duplicate_at, attributes, parts, outcome)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
