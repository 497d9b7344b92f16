//! Names of metrics, and reports that several modules make.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use metrics::{Counter, Histogram, counter, histogram};
use oncegate::WorkspaceName;

use crate::brake::Brake;

/// Callers that were stopped, by guard.
pub const STOPPED: &str = "oncegate_duplicates_stopped_total";
pub const LIMITED: &str = "oncegate_workspace_limited_total";
pub const REQUEST_SECONDS: &str = "oncegate_http_request_seconds";

/// Reports a refusal at a limit of a workspace. The log names the workspace; a label of a metric would have too many values.
/// `None` means the workspaces that share one set of limits, because there are too many of them.
pub fn limited(workspace: Option<&WorkspaceName>, limit: &'static str) {
    static BRAKE: Brake = Brake::new();
    counter!(LIMITED, "limit" => limit).increment(1);
    if let Some(left_out) = BRAKE.admit(Instant::now()) {
        let workspace = workspace.map(WorkspaceName::as_str);
        tracing::warn!(event = "workspace.limited", workspace, limit, leftOut = left_out);
    }
}

/// The name of this replica: the machine, and the process on it.
pub fn replica() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}/{}", std::process::id())
}

/// Counters of answers by class of status, and their latency; looked up once.
pub struct Responses {
    by_class: [Counter; 5],
    seconds: Histogram,
}

impl Default for Responses {
    fn default() -> Self {
        Responses {
            by_class: ["1xx", "2xx", "3xx", "4xx", "5xx"]
                .map(|class| counter!("oncegate_http_requests_total", "status" => class)),
            seconds: histogram!(REQUEST_SECONDS),
        }
    }
}

impl Responses {
    pub fn count(&self, status: StatusCode, took: Duration) {
        if let Some(counter) = self.by_class.get(usize::from(status.as_u16() / 100 - 1)) {
            counter.increment(1);
        }
        self.seconds.record(took);
    }
}
