//! `oncegate tail`: follows the decisions of a running server, and the reason for each.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use serde_json::Value;
use url::{Position, Url};

use oncegate_config::Config;
use oncegate_http::auth::WORKSPACE_HEADER;
use oncegate_http::decisions::words::{Fate, Meaning, plain};
use oncegate_process::failure::Failure;
use oncegate_process::output::say;
use oncegate_transports::outgoing;

/// The pause before a reconnect to a server that went away.
const PAUSE: Duration = Duration::from_secs(1);
/// How many bytes of an error answer are read.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Follow the decisions of a running server
#[derive(Args)]
pub struct Command {
    /// Where the server is [default: where the configuration says that it listens]
    #[arg(long, value_name = "URL")]
    server: Option<Url>,
    /// An API key, where keys exist
    #[arg(long, env = "ONCEGATE_KEY", hide_env_values = true, value_name = "og_…")]
    key: Option<String>,
    /// Of this workspace, while no keys exist
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Only those of this guard
    #[arg(long, value_name = "NAME")]
    guard: Option<String>,
    /// Only these: passed, done, stopped, failed, needed (a person has to look) or noted
    #[arg(long, value_name = "FATE")]
    fate: Option<String>,
    /// Only events whose names begin like this: claim., message.api.duplicate, …
    #[arg(long, value_name = "PREFIX")]
    event: Option<String>,
    /// Begin with so many of the last ones
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    last: u64,
    /// Print each as a line of JSON, as the log has it
    #[arg(long)]
    json: bool,
}

/// Why the stream has ended.
enum Ended {
    /// A retry cannot succeed.
    For(Failure),
    /// The server went away.
    Away(String),
    /// The reader of the output has closed the pipe.
    Read,
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    let server = match &command.server {
        Some(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url.clone(),
        Some(url) => return Err(Failure::usage(format!("--server {url}: not an http or https URL"))),
        None => format!("http://{}", config.listen).parse().expect("an address makes a URL"),
    };
    let mut printer = Printer { json: command.json, colour: std::io::stdout().is_terminal() };
    let mut last = command.last;
    let mut has_heard = false;
    loop {
        match follow(&command, &server, last, &mut printer, &mut has_heard).await {
            Ended::Read => return Ok(()),
            Ended::For(failure) => return Err(failure),
            Ended::Away(why) if !has_heard => {
                return Err(Failure::new(format!("{server} does not answer: {why}"))
                    .hint("oncegate serve starts it; --server says where it is"));
            }
            Ended::Away(why) => say(format_args!(
                "oncegate: {server} went away ({why}); waiting for it. What it decides meanwhile is not shown"
            )),
        }
        // A reconnect does not ask for old decisions: which ones were missed is unknown.
        last = 0;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Connects, and prints decisions until the stream ends.
async fn follow(command: &Command, server: &Url, last: u64, printer: &mut Printer, has_heard: &mut bool) -> Ended {
    let away = |why: &dyn std::fmt::Display| Ended::Away(why.to_string());
    let everywhere: [IpNet; 2] = ["0.0.0.0/0", "::/0"].map(|network| network.parse().expect("a network"));
    let stream = match outgoing::connect(server, &everywhere).await {
        Ok(stream) => stream,
        Err(error) => return away(&error),
    };
    let (mut sender, connection) = match http1::handshake(TokioIo::new(stream)).await {
        Ok(made) => made,
        Err(error) => return away(&error),
    };
    let connection = tokio::spawn(connection);
    let request = match request(command, server, last) {
        Ok(request) => request,
        Err(failure) => return Ended::For(failure),
    };
    let response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(error) => return away(&error),
    };
    if !response.status().is_success() {
        let status = response.status();
        let body = Limited::new(response.into_body(), ERROR_BYTES_MAX).collect().await.map(|body| body.to_bytes());
        return Ended::For(refused(status, &body.unwrap_or_default()));
    }
    if !std::mem::replace(has_heard, true) {
        say(format_args!("following the decisions of {server}; ctrl-c ends it"));
    }
    let mut body = response.into_body();
    let mut buffered = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { break };
        buffered.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..]));
        while let Some(end) = buffered.windows(2).position(|pair| pair == b"\n\n") {
            let event = buffered.split_to(end + 2);
            if !printer.print(&String::from_utf8_lossy(&event)) {
                return Ended::Read;
            }
        }
    }
    connection.abort();
    Ended::Away("the connection ended".into())
}

fn request(command: &Command, server: &Url, last: u64) -> Result<Request<Empty<Bytes>>, Failure> {
    let mut url = server.join("/api/decisions").expect("a path joins");
    url.query_pairs_mut().append_pair("last", &last.to_string());
    let filters = [("guard", &command.guard), ("fate", &command.fate), ("event", &command.event)];
    for (name, value) in filters.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        url.query_pairs_mut().append_pair(name, value);
    }
    let mut request = Request::get(&url[Position::BeforePath..])
        .header(HOST, &url[Position::BeforeHost..Position::AfterPort])
        .header(ACCEPT, "text/event-stream");
    if let Some(key) = &command.key {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    if let Some(workspace) = &command.workspace {
        request = request.header(WORKSPACE_HEADER, workspace);
    }
    request.body(Empty::new()).map_err(|error| Failure::usage(format!("this cannot be asked for: {error}")))
}

fn refused(status: hyper::StatusCode, body: &[u8]) -> Failure {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = problem["detail"].as_str().unwrap_or("it said no more");
    let failure = Failure::new(format!("the server answered {status}: {detail}"));
    match problem["hint"].as_str() {
        Some(_) if status == hyper::StatusCode::UNAUTHORIZED => {
            failure.hint("--key og_…, or ONCEGATE_KEY; oncegate key create --workspace NAME makes one")
        }
        Some(hint) => failure.hint(hint),
        None => failure.hint("is it an oncegate server?"),
    }
}

struct Printer {
    json: bool,
    colour: bool,
}

impl Printer {
    /// Prints one server-sent event. Returns false if the reader of the output has left.
    fn print(&mut self, event: &str) -> bool {
        let field = |name: &str| {
            let lines = event.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
        };
        let data = field("data");
        match field("event").as_str() {
            "decision" if self.json => write_line(&data),
            "decision" => match serde_json::from_str(&data).ok().and_then(|line| self.line(&line)) {
                Some(line) => write_line(&line),
                None => true,
            },
            "missed" => {
                let missed = serde_json::from_str::<Value>(&data).unwrap_or_default();
                say(format_args!("oncegate: {} decisions came too fast, and are not shown", missed["missed"]));
                true
            }
            _ => true,
        }
    }

    fn line(&self, line: &Value) -> Option<String> {
        let said = plain(line)?;
        let at = line["timestamp"].as_str().unwrap_or_default();
        let clock = at.split_once('T').map_or(at, |(_, time)| time.trim_end_matches('Z'));
        if !self.colour {
            return Some(format!("{clock} {said}"));
        }
        let colour = match Meaning::of(line["event"].as_str()?)?.fate {
            Fate::Passed | Fate::Done => "32",
            Fate::Stopped => "36",
            Fate::Failed => "33",
            Fate::Needed => "1;31",
            Fate::Noted => "2",
        };
        Some(format!("\u{1b}[2m{clock}\u{1b}[0m \u{1b}[{colour}m{said}\u{1b}[0m"))
    }
}

fn write_line(line: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => {
            say(format_args!("oncegate: cannot write the output: {error}"));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_coloured_by_what_became_of_it() {
        let line = serde_json::json!({"timestamp": "2026-11-15T09:30:00.123Z", "event": "claim.won", "guard": "g"});
        let printed = |colour| Printer { json: false, colour }.line(&line).unwrap();
        assert_eq!(printed(false), "09:30:00.123 g                passed   first request: allowed");
        assert!(printed(true).starts_with("\u{1b}[2m09:30:00.123\u{1b}[0m \u{1b}[32mg "));
    }
}
