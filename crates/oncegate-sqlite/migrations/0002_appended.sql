-- New claims are only appended; which row a key is in is remembered in memory (see `index.rs`). A random key in an index on
-- disk would dirty a page of its own with every claim. `seq` grows in the order of commits and is never used twice,
-- which is how processes that share the file find each other's rows.
ALTER TABLE claims RENAME TO claims_before;

CREATE TABLE claims (
    -- Declared, since a mere rowid may change when the file is vacuumed.
    seq               INTEGER PRIMARY KEY,
    workspace         TEXT    NOT NULL,
    id                BLOB    NOT NULL,
    guard             TEXT    NOT NULL,
    state             TEXT    NOT NULL,
    token             INTEGER NOT NULL,
    version           INTEGER NOT NULL,
    attempt           INTEGER NOT NULL,
    lost              TEXT    NOT NULL,
    lease_us          INTEGER NOT NULL,
    lease_until       INTEGER NOT NULL,
    expires_at        INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    settled_at        INTEGER,
    fingerprint       TEXT,
    duplicates        INTEGER NOT NULL,
    last_duplicate_at INTEGER,
    attributes        TEXT,
    parts             TEXT,
    -- Last: it may be large, and what follows a large column is slow to reach.
    outcome           BLOB
) STRICT;

INSERT INTO claims
SELECT rowid, workspace, id, guard, state, token, version, attempt, lost, lease_us, lease_until, expires_at, created_at,
       settled_at, fingerprint, duplicates, last_duplicate_at, attributes, parts, outcome
FROM claims_before ORDER BY rowid;

DROP TABLE claims_before;

-- For the sweeper. Windows of one guard are of one length, so this grows at its end.
CREATE INDEX claims_expiry ON claims (expires_at);

-- For lists, newest first.
CREATE INDEX claims_newest ON claims (workspace, token);

-- What a person may have to look at. An ordinary claim is not in it, and pays nothing for it.
CREATE INDEX claims_attention ON claims (workspace, token)
    WHERE state = 'unknown' OR (state = 'in_flight' AND lost = 'hold');

-- How many rows were removed, and the largest of what was in them: with it tokens keep growing for good, and no `seq`
-- comes back. By a trigger, so that it holds for whoever removes them.
ALTER TABLE token_floor RENAME TO removed;
ALTER TABLE removed RENAME COLUMN token TO largest_token;
ALTER TABLE removed ADD COLUMN largest_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE removed ADD COLUMN rows INTEGER NOT NULL DEFAULT 0;

CREATE TRIGGER claims_removed AFTER DELETE ON claims BEGIN
    UPDATE removed
    SET largest_token = max(largest_token, OLD.token), largest_seq = max(largest_seq, OLD.seq), rows = rows + 1;
END;
