-- The ledger's clock: one row, which all processes that share the file go by (see `anchor.rs`). Times are microseconds, since 1970 or
-- since the machine's boot.
CREATE TABLE ledger_clock (
    one              INTEGER PRIMARY KEY CHECK (one = 1),
    -- The boot that the times since boot below are of. NULL: no process has set the clock yet.
    boot             TEXT,
    -- At `since_us` after boot, the ledger's time was `offset_us` more than that; it moves towards `target_us` more.
    since_us         INTEGER NOT NULL,
    offset_us        INTEGER NOT NULL,
    target_us        INTEGER NOT NULL,
    -- Nothing is swept before.
    sweeps_from_us   INTEGER NOT NULL,
    -- A step of the wall clock that is not confirmed yet: where it is now, and since when.
    step_offset_us   INTEGER,
    step_since_us    INTEGER,
    -- No time in this file is later.
    seen_us          INTEGER NOT NULL,
    -- When a process last wrote just to see that it can.
    probed_us        INTEGER NOT NULL
) STRICT;
-- A file with claims has been used before: time goes on from the largest time that it shows, as after a reboot. Claims are in the order of
-- their commits, and jobs in that of their creation.
INSERT INTO ledger_clock
SELECT 1, CASE WHEN seen > 0 THEN '0' END, 0, 0, 0, 0, NULL, NULL, seen, 0
FROM (
    SELECT max(coalesce((SELECT max(created_at, coalesce(settled_at, 0)) FROM claims ORDER BY seq DESC LIMIT 1), 0),
               coalesce((SELECT created_at FROM jobs ORDER BY id DESC LIMIT 1), 0)) AS seen
);

-- The steps of the schema, each with the oldest build that runs on it, named by the newest step that the build knows.
CREATE TABLE schema_steps (
    version      INTEGER PRIMARY KEY,
    name         TEXT    NOT NULL,
    oldest_build INTEGER NOT NULL
) STRICT;
