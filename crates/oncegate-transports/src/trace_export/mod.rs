//! The export of spans to the collector: a bounded queue, and one task that empties it. No caller waits for either.

mod settings;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use ipnet::IpNet;
use metrics::counter;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use url::{Position, Url};

use crate::outgoing::exchange;
use crate::trace::{self, DROPPED, Spans};
use oncegate_process::failure::Failure;
use settings::Settings;

/// The task that exports.
pub struct Exporting {
    stop: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Exporting {
    /// Exports the queued spans, within the time.
    pub async fn stop(self, within: Duration) {
        self.stop.notify_one();
        if tokio::time::timeout(within, self.task).await.is_err() {
            tracing::warn!(event = "traces.not_flushed", after = ?within);
        }
    }
}

/// Starts the export, if the environment enables it. Settings that are not supported are refused.
pub fn start() -> Result<Option<Exporting>, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let Some(settings) = Settings::read(variable)? else { return Ok(None) };
    let (spans, exporting) = start_with(&settings)?;
    trace::turn_on(settings.sampler, spans);
    Ok(Some(exporting))
}

fn start_with(settings: &Settings) -> Result<(Spans, Exporting), Failure> {
    metrics::describe_counter!(DROPPED, "Spans that were not exported.");
    let collector =
        Collector { url: settings.endpoint.clone(), within: settings.within, is_away: AtomicBool::new(false) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(collector)
        .with_endpoint(settings.endpoint.as_str())
        .with_protocol(settings.protocol)
        .with_headers(settings.headers.clone())
        .with_timeout(settings.within)
        .build();
    let mut exporter = exporter.map_err(|error| Failure::usage(error.to_string()))?;
    exporter.set_resource(&settings.resource);
    let (queue, spans) = Spans::queue(settings.queue);
    let stop = Arc::new(Notify::new());
    for variable in &settings.ignored {
        tracing::warn!(event = "traces.setting_ignored", variable);
    }
    tracing::info!(event = "traces.exporting", to = &settings.endpoint[..Position::BeforePath]);
    let task = tokio::spawn(export(spans, stop.clone(), exporter, settings.batch, settings.every));
    Ok((queue, Exporting { stop, task }))
}

/// Exports a batch when it is full, or when it is due, until it is told to stop and the queue is empty.
async fn export(
    mut spans: mpsc::Receiver<SpanData>,
    stop: Arc<Notify>,
    exporter: SpanExporter,
    batch_max: usize,
    every: Duration,
) {
    let mut batch = vec![];
    loop {
        let is_open = tokio::select! {
            is_open = fill(&mut batch, batch_max, &mut spans) => is_open,
            () = tokio::time::sleep(every) => true,
            () = stop.notified() => {
                spans.close();
                continue;
            }
        };
        let count = batch.len();
        // The collector's client logs the reason.
        if count > 0 && exporter.export(std::mem::take(&mut batch)).await.is_err() {
            counter!(DROPPED).increment(count as u64);
        }
        if !is_open {
            return;
        }
    }
}

/// Returns true when the batch is full, and false when the queue is closed.
async fn fill(batch: &mut Vec<SpanData>, max: usize, spans: &mut mpsc::Receiver<SpanData>) -> bool {
    while batch.len() < max {
        if spans.recv_many(batch, max - batch.len()).await == 0 {
            return false;
        }
    }
    true
}

/// The collector, over a connection for each batch.
#[derive(Debug)]
struct Collector {
    url: Url,
    within: Duration,
    /// Logged once, and once more when the collector is back.
    is_away: AtomicBool,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The operator sets the environment, so the collector may have any address.
        let anywhere = ["0.0.0.0/0", "::/0"].map(|all| all.parse::<IpNet>().expect("a network"));
        let posted = exchange(&self.url, request.map(Full::new), &anywhere, self.within).await;
        let posted = posted.map_err(|error| self.failed(error)).inspect(|posted| match posted.status.is_success() {
            true if self.is_away.swap(false, Ordering::Relaxed) => tracing::info!(event = "traces.exported_again"),
            true => {}
            false => _ = self.failed(format!("the collector answered {}", posted.status)),
        })?;
        let mut response = Response::new(posted.body);
        *response.status_mut() = posted.status;
        *response.headers_mut() = posted.headers;
        Ok(response)
    }
}

impl Collector {
    fn failed(&self, why: impl fmt::Display) -> HttpError {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(event = "traces.not_exported", %why, to = &self.url[..Position::BeforePath]);
        }
        why.to_string().into()
    }
}
