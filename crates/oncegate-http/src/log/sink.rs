//! Lines go into a buffer, and a separate thread writes them, so that a slow reader of the log slows no caller. The buffer is bounded:
//! when it is full, lines are dropped and counted, and the count is logged.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

const BUFFER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long lines are collected before they are written, so that a busy server's log needs no wake-up per line.
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
    /// The thread sleeps and must be woken. Otherwise it checks on its own, which saves a system call per line.
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
            // The reader may be gone; the server goes on.
            let _ = out.write_all(&bytes).and_then(|()| out.flush());
            bytes.clear();
            if dropped > 0 {
                metrics::counter!("oncegate_log_lines_dropped_total").increment(dropped);
                tracing::warn!(event = "log.dropped", lines = dropped);
            }
        }
    }
}
