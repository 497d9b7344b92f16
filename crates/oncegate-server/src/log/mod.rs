//! The log: one JSON line per event on standard output, or lines for people.
//!
//! Lines are put into a buffer and written by a thread of their own, so that a slow reader of the log
//! slows no caller. The buffer is bounded: past it lines are dropped, counted, and the count is logged.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{self, LogFormat, LogLevel};

const BUFFER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Writes what is buffered when dropped.
pub struct Log {
    sink: Arc<Sink>,
    thread: Option<JoinHandle<()>>,
}

/// Starts logging for the whole process.
pub fn start(config: &config::Log) -> Log {
    let sink = Arc::new(Sink::default());
    let writer = sink.clone();
    let thread = std::thread::Builder::new()
        .name("oncegate-log".into())
        .spawn(move || writer.write_until_closed(&mut io::stdout().lock()))
        .expect("a thread can be started");
    let level = match config.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_writer(Lines(sink.clone()));
    match config.format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
        LogFormat::Pretty => builder.with_ansi(io::IsTerminal::is_terminal(&io::stdout())).init(),
    }
    Log { sink, thread: Some(thread) }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.sink.lock().closed = true;
        self.sink.more.notify_one();
        if let Some(thread) = self.thread.take() {
            // A log that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

#[derive(Default)]
struct Sink {
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
    fn lock(&self) -> std::sync::MutexGuard<'_, Buffer> {
        self.buffer.lock().expect("no holder of this lock panics")
    }

    fn append(&self, line: &[u8]) {
        let mut buffer = self.lock();
        if buffer.bytes.len() + line.len() > BUFFER_BYTES_MAX {
            buffer.dropped += 1;
            return;
        }
        buffer.bytes.extend_from_slice(line);
        if std::mem::take(&mut buffer.sleeping) {
            self.more.notify_one();
        }
    }

    fn write_until_closed(&self, out: &mut dyn Write) {
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
            std::mem::swap(&mut bytes, &mut buffer.bytes);
            let dropped = std::mem::take(&mut buffer.dropped);
            drop(buffer);
            if dropped > 0 {
                bytes.extend_from_slice(format!("{{\"event\":\"log.dropped\",\"lines\":{dropped}}}\n").as_bytes());
            }
            // Nobody may be reading; that is no reason to stop.
            let _ = out.write_all(&bytes).and_then(|()| out.flush());
            bytes.clear();
        }
    }
}

/// One line at a time: the formatter writes each event in one call.
#[derive(Clone)]
struct Lines(Arc<Sink>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.append(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}
