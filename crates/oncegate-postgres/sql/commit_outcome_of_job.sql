-- What became of a transaction, and whether a job that it wrote is there, or what has become of it since.
--   $1 transaction   $2 workspace   $3 id   $4 version
SELECT pg_xact_status($1::text::xid8),
       EXISTS (SELECT FROM jobs WHERE workspace = $2 AND id = $3 AND version >= $4::bigint)
