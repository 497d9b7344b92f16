-- Who may ask.

CREATE TABLE workspaces (
    name       text   COLLATE "C" PRIMARY KEY,
    created_at bigint NOT NULL
);
INSERT INTO workspaces (name, created_at) VALUES ('default', store_time(NULL));

CREATE TABLE api_keys (
    workspace  text   COLLATE "C" NOT NULL REFERENCES workspaces (name),
    id         text   COLLATE "C" NOT NULL UNIQUE,
    role       text   NOT NULL CHECK (role IN ('send', 'operate', 'admin')),
    -- SHA-256. The key itself is kept nowhere.
    hash       bytea  NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint,
    PRIMARY KEY (workspace, id)
);
