//! A worker that asks Oncegate before it sends. `--no-guard` leaves that out.

use std::env;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Less than the lease: a send that hangs is given up while it is still ours.
const PATIENCE: Duration = Duration::from_secs(10);

struct Worker {
    sends: String,
    provider: String,
    guarded: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    id: Value,
    campaign_id: String,
    recipient_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Proceed {
    id: String,
    token: Value,
    provider_key: String,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

enum Failure {
    /// It surely did not arrive.
    Unsent(String),
    /// It may have been sent.
    Unclear(String),
}

#[tokio::main]
async fn main() {
    let worker = Worker {
        sends: env::var("ONCEGATE_URL").expect("ONCEGATE_URL") + "/api/sends",
        provider: env::var("DRILL_PROVIDER_URL").expect("DRILL_PROVIDER_URL"),
        guarded: !env::args().any(|arg| arg == "--no-guard"),
    };
    let (sender, mut lines) = mpsc::channel(1);
    // Reading stdin blocks, and so has a thread of its own.
    std::thread::spawn(move || {
        io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.blocking_send(line))
    });
    stream::poll_fn(|cx| lines.poll_recv(cx)).for_each_concurrent(4, |line| worker.handle(line)).await;
}

impl Worker {
    async fn handle(&self, line: String) {
        let job: Job = serde_json::from_str(&line).expect("a job");
        let answer = self.work(&job).await.unwrap_or_else(|(Failure::Unsent(error) | Failure::Unclear(error))| {
            eprintln!("job {}: {error}", job.id);
            json!({"retry": job.id, "after": 1})
        });
        println!("{answer}");
    }

    /// Does a job, and returns what to tell the queue.
    async fn work(&self, job: &Job) -> Result<Value, Failure> {
        let ack = json!({"ack": job.id});
        if !self.guarded {
            self.send(job, None).await?;
            return Ok(ack);
        }

        let begun = post(&self.sends, &job.named(), None).await?;
        match begun.status {
            StatusCode::CREATED => {}
            // Skip: it was sent already.
            StatusCode::OK => return Ok(ack),
            // Busy, or Oncegate cannot say: never send unguarded.
            StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE => {
                return Ok(json!({"retry": job.id, "after": begun.retry_after()}));
            }
            status => return Err(Failure::Unsent(format!("Oncegate answered {status}"))),
        }
        let ours: Proceed = begun.json()?;
        let sent = self.send(job, Some(&ours.provider_key)).await;
        let (verb, body) = match &sent {
            Ok(message) => ("sent", json!({"token": ours.token, "espMessageId": message})),
            Err(Failure::Unsent(error)) => ("failed", json!({"token": ours.token, "error": error, "reached": "no"})),
            Err(Failure::Unclear(error)) => {
                ("failed", json!({"token": ours.token, "error": error, "reached": "maybe"}))
            }
        };
        let told = post(&format!("{}/{}/{verb}", self.sends, ours.id), &body, None).await?;
        sent?;
        match told.status.is_success() {
            true => Ok(ack),
            // It is not written down, so the job is not done: the next try asks again.
            false => Err(Failure::Unclear(format!("Oncegate answered {} to sent", told.status))),
        }
    }

    /// Calls the provider, and returns its id of the message.
    async fn send(&self, job: &Job, key: Option<&str>) -> Result<Value, Failure> {
        let answer = post(&self.provider, &job.named(), key).await?;
        match answer.status {
            status if status.is_success() => Ok(answer.json::<Value>()?["id"].take()),
            // It may have taken what it calls a time-out or a conflict.
            StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT => {
                Err(Failure::Unclear(format!("the provider answered {}", answer.status)))
            }
            status if status.is_client_error() => Err(Failure::Unsent(format!("the provider answered {status}"))),
            status => Err(Failure::Unclear(format!("the provider answered {status}"))),
        }
    }
}

impl Job {
    fn named(&self) -> Value {
        json!({"campaignId": self.campaign_id, "recipientId": self.recipient_id, "jobId": self.id})
    }
}

impl Answer {
    fn json<T: for<'a> Deserialize<'a>>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(unclear)
    }

    fn retry_after(&self) -> u64 {
        self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(1)
    }
}

/// Posts JSON, over a connection of its own: what fails before there is one has sent nothing, what fails later may have
/// arrived. (Plain HTTP, which is all that a drill needs. For https take a client such as reqwest, whose
/// `Error::is_connect` tells the two apart.)
async fn post(url: &str, body: &Value, key: Option<&str>) -> Result<Answer, Failure> {
    let url: Uri = url.parse().map_err(unsent)?;
    let (host, port) = (url.host().unwrap_or_default(), url.port_u16().unwrap_or(80));
    let connected = timeout(PATIENCE, TcpStream::connect((host, port))).await.map_err(unsent)?;
    let stream = connected.map_err(unsent)?;
    let (mut connection, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(unsent)?;
    tokio::spawn(driver);

    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::post(path).header(HOST, format!("{host}:{port}")).header(CONTENT_TYPE, "application/json");
    let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
    let request = request.body(Full::<Bytes>::from(body.to_string())).map_err(unsent)?;
    let exchange = async {
        let (head, body) = connection.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok::<_, hyper::Error>(Answer { status: head.status, headers: head.headers, body })
    };
    timeout(PATIENCE, exchange).await.map_err(unclear)?.map_err(unclear)
}

fn unsent(error: impl ToString) -> Failure {
    Failure::Unsent(error.to_string())
}

fn unclear(error: impl ToString) -> Failure {
    Failure::Unclear(error.to_string())
}
