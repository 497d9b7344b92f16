//! Clocks that step: a test moves the wall clock and the clock since boot of a child process while it runs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::shim;

const FILE: &str = "ONCEGATE_TEST_CLOCK_FILE";

/// The shim, and the file that gives the time to all processes that load it.
///
/// ```no_run
/// # use oncegate_lab::clock::Shim;
/// # use std::{process::Command, time::Duration};
/// let clock = Shim::new("clock.shift").unwrap();
/// let mut server = Command::new("oncegate");
/// clock.apply_to(&mut server);
/// let _running = server.spawn().unwrap();
/// clock.step_forward(Duration::from_secs(3_600)).unwrap();
/// ```
#[derive(Debug)]
pub struct Shim {
    library: PathBuf,
    path: PathBuf,
    file: File,
    shift: Mutex<Shift>,
}

/// By how much the child's clocks differ from the machine's, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Of `CLOCK_REALTIME`, the wall clock.
    pub wall_micros: i64,
    /// Of `CLOCK_BOOTTIME`, which counts time in suspend. `CLOCK_MONOTONIC` does not count it, and is never shifted.
    pub boot_micros: i64,
}

impl Shim {
    /// Creates the file. The clocks are right until the first step.
    pub fn new(file: impl AsRef<Path>) -> io::Result<Shim> {
        let library = shim::build("clock", include_str!("../shim/clock.c"))?;
        let options = File::options().read(true).write(true).create(true).truncate(true).open(file.as_ref())?;
        let shim = Shim { library, path: file.as_ref().canonicalize()?, file: options, shift: Mutex::default() };
        shim.set(Shift::default())?;
        Ok(shim)
    }

    /// Makes the child, once spawned, follow this clock.
    pub fn apply_to(&self, child: &mut Command) {
        shim::preload(child, &self.library);
        child.env(FILE, &self.path);
    }

    /// Steps the wall clock; negative steps go back.
    pub fn step_micros(&self, micros: i64) -> io::Result<()> {
        self.change(|shift| shift.wall_micros += micros)
    }

    pub fn step_forward(&self, by: std::time::Duration) -> io::Result<()> {
        self.step_micros(micros(by))
    }

    pub fn step_back(&self, by: std::time::Duration) -> io::Result<()> {
        self.step_micros(-micros(by))
    }

    /// Simulates a suspended machine: the wall clock and the clock since boot have advanced, `CLOCK_MONOTONIC` has not.
    pub fn suspend(&self, by: std::time::Duration) -> io::Result<()> {
        self.change(|shift| {
            shift.wall_micros += micros(by);
            shift.boot_micros += micros(by);
        })
    }

    pub fn set(&self, to: Shift) -> io::Result<()> {
        self.change(|shift| *shift = to)
    }

    pub fn shift(&self) -> Shift {
        *self.shift.lock().expect("no holder of this lock panics")
    }

    fn change(&self, change: impl FnOnce(&mut Shift)) -> io::Result<()> {
        let mut shift = self.shift.lock().expect("no holder of this lock panics");
        change(&mut shift);
        // One write, so that no process sees one clock moved and the other not.
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&shift.wall_micros.to_ne_bytes());
        bytes[8..].copy_from_slice(&shift.boot_micros.to_ne_bytes());
        self.file.write_all_at(&bytes, 0)
    }
}

fn micros(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seconds(child: &mut Command) -> i64 {
        let output = child.output().expect("date runs");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
    }

    #[test]
    fn a_child_sees_the_stepped_wall_clock() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let clock = Shim::new(folder.path().join("shift")).expect("cc builds the shim");
        let ask = || {
            let mut date = Command::new("date");
            clock.apply_to(&mut date);
            seconds(date.arg("+%s")) - seconds(Command::new("date").arg("+%s"))
        };
        assert!(ask().abs() <= 1);
        clock.step_forward(Duration::from_secs(3_600)).expect("writes");
        assert!((ask() - 3_600).abs() <= 1);
        clock.step_back(Duration::from_secs(2 * 3_600)).expect("writes");
        assert!((ask() + 3_600).abs() <= 1);
    }
}
