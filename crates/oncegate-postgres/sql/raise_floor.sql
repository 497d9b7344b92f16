-- Raises the floor of tokens to the largest token that a replica remembers or a claim has.
--   $1 the largest token that this replica remembers
--
-- Asked whenever a replica meets a server that it does not know: its clock may be behind that of the server before it, and
-- claims that it has lost had tokens. The largest token of each workspace is one probe of an index.
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
