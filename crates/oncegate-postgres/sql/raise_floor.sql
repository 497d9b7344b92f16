-- Raises the floor of tokens to the largest token that a replica remembers or a claim has.
--   $1 the largest token that this replica remembers
--
-- Runs whenever a replica meets a server that is new to it. The new server's clock may be behind the clock of the server before it, and
-- the claims that it has lost had tokens. One index probe finds the largest token of each workspace.
WITH RECURSIVE largest AS (
    (SELECT workspace, token FROM claims ORDER BY workspace DESC, token DESC LIMIT 1)
    UNION ALL
    SELECT below.workspace, below.token
    FROM largest
    CROSS JOIN LATERAL (
        SELECT c.workspace, c.token
        FROM claims AS c
        WHERE c.workspace < largest.workspace
        ORDER BY c.workspace DESC, c.token DESC
        LIMIT 1
    ) AS below
), floor AS (
    SELECT greatest($1::bigint, (SELECT max(token) FROM largest)) AS token
)
UPDATE meta SET token_floor = floor.token FROM floor WHERE only_row AND meta.token_floor < floor.token
