//! The log: one JSON line per event on standard output, or lines for people.

mod json;
mod sink;

use std::io::{self, Write};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::decisions::Decisions;
use json::JsonLines;
use oncegate_config::{self as config, LogFormat, LogLevel};
use sink::Sink;

/// How long the last lines may take: a stalled reader of the log does not keep the process alive.
const GOODBYE: Duration = Duration::from_secs(1);

/// Writes what is buffered when dropped.
pub struct Log {
    sink: Arc<Sink>,
    written: mpsc::Receiver<()>,
}

/// Starts logging for the whole process. Decisions are recorded at every log level.
pub fn start(config: &config::Log, decisions: Arc<Decisions>) -> Log {
    let sink = Arc::new(Sink::default());
    let writer = sink.clone();
    let (done, written) = mpsc::channel();
    std::thread::Builder::new()
        .name("oncegate-log".into())
        .spawn(move || {
            writer.write_until_closed(&mut io::stdout().lock());
            // The receiver may be gone.
            let _ = done.send(());
        })
        .expect("a thread can be started");
    let level = match config.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Messages of libraries are only for those who debug them; the server logs what they mean for it. The clients of brokers repeat
    // messages.
    let is_ours = move |said: &Metadata<'_>| {
        let target = said.target();
        target.starts_with("oncegate")
            || (level >= LevelFilter::DEBUG && !["lapin", "async_nats"].iter().any(|client| target.starts_with(client)))
    };
    let lines = tracing_subscriber::registry().with(level.max(LevelFilter::INFO)).with(filter_fn(is_ours));
    match config.format {
        LogFormat::Json => lines.with(JsonLines { log: Some(sink.clone()), level, decisions }).init(),
        LogFormat::Pretty => {
            let is_terminal = io::IsTerminal::is_terminal(&io::stdout());
            let people = tracing_subscriber::fmt::layer().with_target(false).with_ansi(is_terminal);
            let people = people.with_writer(Lines(sink.clone())).with_filter(level);
            lines.with(JsonLines { log: None, level, decisions }).with(people).init();
        }
    }
    Log { sink, written }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.sink.close();
        // The process ends in any case, so a time-out is ignored.
        let _ = self.written.recv_timeout(GOODBYE);
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
