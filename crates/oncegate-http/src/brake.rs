//! Limits errors that repeat by the thousand while the store is away: some lines a second are logged, the rest is counted.

use std::sync::Mutex;
use std::time::{Duration, Instant};

const LINES_MAX: u32 = 5;
const PERIOD: Duration = Duration::from_secs(1);

/// The limit of one event of the log.
pub struct Brake(Mutex<State>);

struct State {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Brake {
    pub const fn new() -> Brake {
        Brake(Mutex::new(State { since: None, lines: 0, left_out: 0 }))
    }

    /// Whether this line is logged, and if so, how many were left out since the last one.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().expect("no holder of this lock panics");
        if state.since.is_none_or(|since| now - since >= PERIOD) {
            (state.since, state.lines) = (Some(now), 0);
        }
        if state.lines == LINES_MAX {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_a_second_are_logged_and_the_rest_is_counted() {
        let (brake, start) = (Brake::new(), Instant::now());
        let admitted: Vec<_> = (0..1_000).filter_map(|_| brake.admit(start)).collect();
        assert_eq!(admitted, [0; LINES_MAX as usize]);
        assert_eq!(brake.admit(start + PERIOD), Some(1_000 - u64::from(LINES_MAX)));
        assert_eq!(brake.admit(start + PERIOD), Some(0));
    }
}
