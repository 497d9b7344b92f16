UPDATE ledger_clock
SET boot = :boot, since_us = :since, offset_us = :offset, target_us = :target, sweeps_from_us = :sweeps_from,
    step_offset_us = :step_offset, step_since_us = :step_since, seen_us = :seen
