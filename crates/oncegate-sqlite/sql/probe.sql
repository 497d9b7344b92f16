-- A write without meaning, which proves that a commit succeeds.
--   ?1 the store's time
UPDATE ledger_clock SET probed_us = ?1
