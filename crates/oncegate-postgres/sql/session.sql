-- What every connection of ours begins with.

-- A statement sees what was committed before it began: the algorithm counts on it.
SET default_transaction_isolation = 'read committed';
-- Nothing of ours is large enough to be worth compiling.
SET jit = off;
-- A plan made while a table was empty must not be kept while it grows: plan for the table as it is,
-- and reach it by its indexes.
SET plan_cache_mode = force_custom_plan;
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
-- The server lets go of our locks when we are stopped or cut off.
SET statement_timeout = '5s';
SET idle_in_transaction_session_timeout = '5s';
