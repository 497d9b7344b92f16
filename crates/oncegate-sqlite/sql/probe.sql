-- A write of no meaning, which shows that a commit succeeds.
--   ?1 the store's time
UPDATE ledger_clock SET probed_us = ?1
