-- Inserts a job, unless the queue has one with its id.
INSERT INTO jobs (id, workspace, kind, state, wakes_at, due_at, token, lease_until, version, tried, tries_max, pause_us,
                  pause_max_us, delivery, begun, reached, created_at, error, payload, lane, started)
VALUES (:id, :workspace, :kind, :state, :wakes_at, :due_at, :token, :lease_until, :version, :tried, :tries_max, :pause_us,
        :pause_max_us, :delivery, :begun, :reached, :created_at, :error, :payload, :lane, :started)
ON CONFLICT DO NOTHING
