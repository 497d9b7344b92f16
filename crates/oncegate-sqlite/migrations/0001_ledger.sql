-- A rowid table: rows are appended, and the narrow unique index on the key decides every race.
-- (A clustered table on the key would rewrite its pages when the outcome is written back.)
CREATE TABLE claims (
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

-- The hash first: it alone decides nearly every comparison.
CREATE UNIQUE INDEX claims_key ON claims (id, workspace);

-- For the sweeper. Windows of one guard are of one length, so this grows at its end.
CREATE INDEX claims_expiry ON claims (expires_at);

-- For lists, newest first.
CREATE INDEX claims_newest ON claims (workspace, token);

-- What a person may have to look at. An ordinary claim is not in it, and pays nothing for it.
CREATE INDEX claims_attention ON claims (workspace, token)
    WHERE state = 'unknown' OR (state = 'in_flight' AND lost = 'hold');

-- The largest token of a record that has been removed: with it tokens keep growing for good.
CREATE TABLE token_floor (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), token INTEGER NOT NULL) STRICT;
INSERT INTO token_floor VALUES (1, 0);

CREATE TABLE workspaces (name TEXT PRIMARY KEY, created_at INTEGER NOT NULL) STRICT;
INSERT INTO workspaces VALUES ('default', CAST(unixepoch('subsec') * 1000000 AS INTEGER));

CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    workspace  TEXT NOT NULL REFERENCES workspaces (name),
    role       TEXT NOT NULL,
    hash       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;
