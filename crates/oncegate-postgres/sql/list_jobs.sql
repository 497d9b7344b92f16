-- The jobs in the queue, newest first.
--   $1 workspace   $2 kind   $3 what the kind begins with   $4 what the lane begins with   $5 state   $6 whether it was tried
--   $7 older than   $8 how many at most
SELECT j.*
FROM jobs AS j
WHERE j.workspace = $1::text
  AND j.id < $7::uuid
  AND ($2::text IS NULL OR j.kind = $2::text)
  AND ($3::text IS NULL OR starts_with(j.kind, $3::text))
  AND ($4::text IS NULL OR starts_with(j.lane, $4::text))
  AND ($5::smallint IS NULL OR j.state = $5::smallint)
  AND ($6::boolean IS NULL OR (j.tried > 0) = $6::boolean)
ORDER BY j.id DESC
LIMIT $8::bigint
