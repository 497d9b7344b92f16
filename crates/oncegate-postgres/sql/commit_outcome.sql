-- What became of a transaction, and whether one of its writes is there.
--   $1 transaction   $2 workspace   $3 id   $4 token   $5 version
--
-- Both, because after a crash or a failover the server may give the same transaction id to another.
SELECT pg_xact_status($1::text::xid8) AS outcome,
       EXISTS (
           SELECT FROM claims
           WHERE workspace = $2::text AND id = $3::bytea
             AND (token > $4::bigint OR token = $4::bigint AND version >= $5::bigint)
       ) AS is_there
