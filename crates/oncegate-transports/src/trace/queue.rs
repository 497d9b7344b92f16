//! The queue of finished spans.

use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Counter, counter};
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;

pub const DROPPED: &str = "oncegate_spans_dropped_total";

/// The queue of finished spans.
pub struct Spans {
    queue: mpsc::Sender<SpanData>,
    dropped: Counter,
    was_full: AtomicBool,
}

impl Spans {
    /// A queue of this length, and its other end.
    pub fn queue(length: usize) -> (Spans, mpsc::Receiver<SpanData>) {
        let (queue, spans) = mpsc::channel(length);
        (Spans { queue, dropped: counter!(DROPPED), was_full: AtomicBool::new(false) }, spans)
    }

    /// Queues a span. If the queue is full, the span is dropped and counted.
    pub fn add(&self, span: SpanData) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(span) {
            self.dropped.increment(1);
            if !self.was_full.swap(true, Ordering::Relaxed) {
                let hint = "OTEL_BSP_MAX_QUEUE_SIZE; what is lost from now on is counted only";
                tracing::warn!(event = "traces.queue_full", counter = DROPPED, hint);
            }
        }
    }
}
