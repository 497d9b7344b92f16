//! Lines are put into a buffer and written by a thread of their own, so that a slow reader of the log
//! slows no caller. The buffer is bounded: past it lines are dropped, counted, and the count is logged.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

const BUFFER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Lines gather this long before they are written: a busy server's log costs it no wake-up per line.
const GATHER: Duration = Duration::from_millis(10);

#[derive(Default)]
pub struct Sink {
    buffer: Mutex<Buffer>,
    more: Condvar,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    dropped: u64,
    closed: bool,
    /// The thread sleeps and must be woken. Otherwise it will look by itself: no system call per line.
    sleeping: bool,
}

impl Sink {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().expect("no holder of this lock panics")
    }

    pub fn append(&self, line: &[u8]) {
        let mut buffer = self.lock();
        if buffer.bytes.len() + line.len() > BUFFER_BYTES_MAX {
            buffer.dropped += 1;
            return;
        }
        buffer.bytes.extend_from_slice(line);
        let sleeping = std::mem::take(&mut buffer.sleeping);
        drop(buffer);
        if sleeping {
            self.more.notify_one();
        }
    }

    pub fn close(&self) {
        self.lock().closed = true;
        self.more.notify_one();
    }

    pub fn write_until_closed(&self, out: &mut dyn Write) {
        let mut bytes = Vec::new();
        loop {
            let mut buffer = self.lock();
            while buffer.bytes.is_empty() {
                if buffer.closed {
                    return;
                }
                buffer.sleeping = true;
                buffer = self.more.wait(buffer).expect("no holder of this lock panics");
            }
            if !buffer.closed {
                (buffer, _) = self.more.wait_timeout(buffer, GATHER).expect("no holder of this lock panics");
            }
            std::mem::swap(&mut bytes, &mut buffer.bytes);
            let dropped = std::mem::take(&mut buffer.dropped);
            drop(buffer);
            // Nobody may be reading; that is no reason to stop.
            let _ = out.write_all(&bytes).and_then(|()| out.flush());
            bytes.clear();
            if dropped > 0 {
                metrics::counter!("oncegate_log_lines_dropped_total").increment(dropped);
                tracing::warn!(event = "log.dropped", lines = dropped);
            }
        }
    }
}
