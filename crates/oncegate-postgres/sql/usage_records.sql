-- How much each workspace stores in some blocks of the records, as in usage_claims.sql.
SELECT all_of_it.blocks, part.workspace, part.claims, part.bytes
FROM (SELECT pg_relation_size('records') / current_setting('block_size')::bigint AS blocks) AS all_of_it
LEFT JOIN (
    SELECT workspace, count(*) AS claims, sum(octet_length(body))::bigint AS bytes
    FROM records WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
    GROUP BY workspace
) AS part ON true
