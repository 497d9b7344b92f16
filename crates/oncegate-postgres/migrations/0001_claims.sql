-- Claims: what Oncegate decides from.

-- The store's time, in microseconds since 1970: the server's clock, unless a test brings its own.
-- One definition for every statement. The planner inlines it, and has nothing to parse.
CREATE FUNCTION store_time(injected bigint) RETURNS bigint LANGUAGE sql VOLATILE
    RETURN coalesce(injected, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

-- One row. Read by every decision; written seldom, by the sweeper and by a replica that meets another server.
CREATE TABLE meta (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- The largest token of a claim that has been removed: with it tokens keep growing
    -- when the record is gone and the clock has stepped back.
    token_floor bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO meta DEFAULT VALUES;

-- Wide fields first, then narrow ones, then those of any length: no padding in between.
-- Times and spans are microseconds. Names compare by bytes (COLLATE "C"): the same order on every
-- server, and no locale to ask.
CREATE TABLE claims (
    token             bigint   NOT NULL,
    version           bigint   NOT NULL DEFAULT 1,
    lease_us          bigint   NOT NULL,
    lease_until       bigint   NOT NULL,
    expires_at        bigint   NOT NULL,
    created_at        bigint   NOT NULL,
    settled_at        bigint,
    duplicates        bigint   NOT NULL DEFAULT 0,
    last_duplicate_at bigint,
    attempt           integer  NOT NULL DEFAULT 1,
    -- 0 in flight, 1 done, 2 failed, 3 unknown.
    state             smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    -- When the owner is lost: 0 the next caller takes over, 1 nobody does.
    lost              smallint NOT NULL DEFAULT 0 CHECK (lost BETWEEN 0 AND 1),
    -- Somebody in some replica waits: whoever settles announces it.
    awaited           boolean  NOT NULL DEFAULT false,
    -- Unknown, or so as soon as its lease ends: what a person may have to look at.
    attention         boolean  NOT NULL GENERATED ALWAYS AS (state = 3 OR state = 0 AND lost = 1) STORED,
    workspace         text     COLLATE "C" NOT NULL,
    guard             text     COLLATE "C" NOT NULL,
    id                bytea    NOT NULL,
    fingerprint       text,
    attributes        text,
    parts             text,
    outcome           bytea
-- Room in each page for the settled version beside the claimed one. No index holds a column that
-- an ordinary settle or renewal changes, so that such an update stays in its page and touches none.
) WITH (fillfactor = 70);

-- For the sweeper.
CREATE INDEX claims_expires_at ON claims (expires_at);
-- For lists, which are read backwards, newest first; ascending, so that new claims go to its end. Without
-- the id, which would make it three times as large: few claims share a token, and those are sorted when read.
CREATE INDEX claims_token ON claims (workspace, token);
-- For the list of unknown ones. An ordinary claim is never in it.
CREATE INDEX claims_attention ON claims (workspace, token) WHERE attention;

-- Last: of indexes that look equally good to it, as all do while the table is empty, the planner takes the newest.
ALTER TABLE claims ADD PRIMARY KEY (workspace, id);
