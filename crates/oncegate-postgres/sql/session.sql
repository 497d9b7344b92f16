-- Every connection of the store begins with these statements.

-- Each statement sees what was committed before it began. The algorithm depends on that.
SET default_transaction_isolation = 'read committed';
-- No statement of the store is large enough to be worth compiling.
SET jit = off;
-- A plan made while a table was empty must not be kept while the table grows: plan for the current table, and use its indexes.
SET plan_cache_mode = force_custom_plan;
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
-- Allocates a megabyte and frees it. After that, the C library of the server keeps up to two megabytes of freed memory for the next
-- statement. By default it may return memory to the system after each statement, and fetch it again for the next.
SELECT WHERE length(repeat(' ', 1048576)) = 0;
-- The server releases our locks when this process is stopped or cut off from the network.
SET statement_timeout = '5s';
SET idle_in_transaction_session_timeout = '5s';
