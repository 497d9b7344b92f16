-- A compare-and-set: replaces only the version that the decision was made from.
UPDATE jobs
SET kind = :kind, state = :state, wakes_at = :wakes_at, due_at = :due_at, token = :token, lease_until = :lease_until,
    version = :version, tried = :tried, tries_max = :tries_max, pause_us = :pause_us, pause_max_us = :pause_max_us,
    delivery = :delivery, begun = :begun, reached = :reached, created_at = :created_at, error = :error, payload = :payload, lane = :lane,
    started = :started
WHERE id = :id AND workspace = :workspace AND version = :version - 1
