-- How much each workspace stores in some blocks of the claims. PostgreSQL reads a range of ctid in the order on disk, and no other
-- block. The length of an outcome is known without reading it. Always at least one row, with the number of blocks.
SELECT all_of_it.blocks, part.workspace, part.claims, part.bytes
FROM (SELECT pg_relation_size('claims') / current_setting('block_size')::bigint AS blocks) AS all_of_it
LEFT JOIN (
    SELECT workspace, count(*) AS claims,
           sum(coalesce(octet_length(outcome), 0) + coalesce(octet_length(attributes), 0)
               + coalesce(octet_length(parts), 0))::bigint AS bytes
    FROM claims WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
    GROUP BY workspace
) AS part ON true
