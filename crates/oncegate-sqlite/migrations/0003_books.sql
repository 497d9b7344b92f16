-- What is kept beside claims: documents, what they are called, the lists that they are in, and the queue.

-- Ids grow with time, so a kind's records are appended at the end of its part of the index.
CREATE TABLE records (
    workspace TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    id        BLOB    NOT NULL,
    version   INTEGER NOT NULL,
    state     TEXT,
    body      BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX records_place ON records (workspace, kind, id);
CREATE INDEX records_state ON records (workspace, kind, state, id) WHERE state IS NOT NULL;

-- A name is one record's alone: who comes second with it conflicts.
CREATE TABLE record_names (
    workspace TEXT NOT NULL,
    kind      TEXT NOT NULL,
    name      TEXT NOT NULL,
    id        BLOB NOT NULL,
    PRIMARY KEY (workspace, kind, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE record_lists (
    workspace TEXT NOT NULL,
    kind      TEXT NOT NULL,
    list      TEXT NOT NULL,
    id        BLOB NOT NULL,
    PRIMARY KEY (workspace, kind, list, id)
) STRICT, WITHOUT ROWID;

-- The queue: what is to be done. What is done is deleted.
CREATE TABLE jobs (
    id           BLOB    NOT NULL,
    workspace    TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    -- When somebody has to look at it next: its due time, or the end of its worker's lease.
    wakes_at     INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    token        INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    tried        INTEGER NOT NULL,
    tries_max    INTEGER NOT NULL,
    pause_us     INTEGER NOT NULL,
    pause_max_us INTEGER NOT NULL,
    delivery     TEXT    NOT NULL,
    begun        INTEGER NOT NULL,
    reached      TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    error        TEXT,
    payload      BLOB    NOT NULL,
    PRIMARY KEY (id, workspace)
) STRICT, WITHOUT ROWID;

CREATE INDEX jobs_wake ON jobs (kind, wakes_at, id);
