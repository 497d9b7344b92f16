-- Counts the jobs in the queue, up to the limit. Its parameters are the same as in list_jobs.sql.
-- Without an order: ordered by id, the scan would walk past all other kinds.
SELECT count(*)
FROM (
    SELECT
    FROM jobs AS j
    WHERE j.workspace = $1::text
      AND j.id < $7::uuid
      AND ($2::text IS NULL OR j.kind = $2::text)
      AND ($3::text IS NULL OR starts_with(j.kind, $3::text))
      AND ($4::text IS NULL OR starts_with(j.lane, $4::text))
      AND ($5::smallint IS NULL OR j.state = $5::smallint)
      AND ($6::boolean IS NULL OR (j.tried > 0) = $6::boolean)
    LIMIT $8::bigint
) AS listed
