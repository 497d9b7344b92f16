-- What is kept beside claims: documents, what they are called, the lists that they are in, and the queue.

CREATE TABLE records (
    version   bigint NOT NULL,
    -- Ids grow with time.
    id        uuid   NOT NULL,
    workspace text   COLLATE "C" NOT NULL,
    kind      text   COLLATE "C" NOT NULL,
    -- One word by which it can be listed.
    state     text   COLLATE "C",
    body      bytea  NOT NULL,
    PRIMARY KEY (workspace, kind, id)
);
CREATE INDEX records_state ON records (workspace, kind, state, id) WHERE state IS NOT NULL;

-- A name is one record's alone: who comes second with it conflicts.
CREATE TABLE record_names (
    id        uuid NOT NULL,
    workspace text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace, kind, name)
);

CREATE TABLE record_lists (
    id        uuid NOT NULL,
    workspace text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    list      text COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace, kind, list, id)
);

-- The queue: what is to be done. What is done is deleted.
CREATE TABLE jobs (
    -- When somebody has to look at it next: its due time, or the end of its worker's lease.
    wakes_at     bigint   NOT NULL,
    due_at       bigint   NOT NULL,
    token        bigint   NOT NULL,
    lease_until  bigint   NOT NULL,
    version      bigint   NOT NULL,
    pause_us     bigint   NOT NULL,
    pause_max_us bigint   NOT NULL,
    created_at   bigint   NOT NULL,
    tried        integer  NOT NULL,
    tries_max    integer  NOT NULL,
    -- 0 pending, 1 running.
    state        smallint NOT NULL CHECK (state BETWEEN 0 AND 1),
    -- 0 at least once, 1 at most once.
    delivery     smallint NOT NULL CHECK (delivery BETWEEN 0 AND 1),
    -- Whether a try may have reached the receiver: 0 no, 1 maybe.
    reached      smallint NOT NULL CHECK (reached BETWEEN 0 AND 1),
    begun        boolean  NOT NULL,
    id           uuid     NOT NULL,
    workspace    text     COLLATE "C" NOT NULL,
    kind         text     COLLATE "C" NOT NULL,
    error        text,
    payload      bytea    NOT NULL,
    PRIMARY KEY (workspace, id)
) WITH (fillfactor = 70);
CREATE INDEX jobs_wake ON jobs (kind, wakes_at, id);
