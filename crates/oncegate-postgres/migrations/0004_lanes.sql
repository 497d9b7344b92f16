-- Jobs in one lane are not at work at the same time; and each workspace's are found by themselves, so that one's do not hold up
-- another's.

ALTER TABLE jobs ADD COLUMN lane text COLLATE "C";
-- A worker has leased it, and it has its lane until it ends.
ALTER TABLE jobs ADD COLUMN started boolean NOT NULL DEFAULT false;
UPDATE jobs SET started = token > 0;

DROP INDEX jobs_wake;
CREATE INDEX jobs_wake ON jobs (kind, workspace, wakes_at, id);
CREATE INDEX jobs_lane ON jobs (workspace, lane, due_at, id) WHERE lane IS NOT NULL;
-- Whoever has started has the lane: of two that start at once, the second conflicts.
CREATE UNIQUE INDEX jobs_lane_taken ON jobs (workspace, lane) WHERE lane IS NOT NULL AND started;
