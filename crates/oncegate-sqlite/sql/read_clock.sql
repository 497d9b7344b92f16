SELECT boot, since_us, offset_us, target_us, sweeps_from_us, step_offset_us, step_since_us, seen_us
FROM ledger_clock
WHERE boot IS NOT NULL
