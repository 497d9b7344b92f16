-- What became of a transaction, and whether a record that it wrote is there.
--   $1 transaction   $2 workspace   $3 kind   $4 id   $5 version
--
-- Both, because after a crash or a failover the server may give the same transaction id to another.
SELECT pg_xact_status($1::text::xid8) AS outcome,
       EXISTS (
           SELECT FROM records
           WHERE workspace = $2::text AND kind = $3::text AND id = $4::uuid AND version >= $5::bigint
       ) AS is_there
