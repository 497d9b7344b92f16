-- A record may have an end of its own, past which the sweeper removes it. Most have none, and are not in this index.
ALTER TABLE records ADD COLUMN expires_at bigint;
CREATE INDEX records_end ON records (expires_at) WHERE expires_at IS NOT NULL;

-- What a record is called, and the lists that it is in, whoever removes it. Ids grow with time: these grow at their ends.
CREATE INDEX record_names_of ON record_names (id, workspace, kind);
CREATE INDEX record_lists_of ON record_lists (id, workspace, kind);
