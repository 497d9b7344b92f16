//! Actions in the server: action types with their handlers, workers that run them, and remote workers that lease them.
//!
//! The library (`oncegate::actions`) defines what an action is and how duplicates coalesce. This module runs the actions.

mod email;
mod events;
mod remote;
mod saga;
mod view;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use oncegate::actions as library;
use oncegate::actions::{Found, Outcome, Refused, Schedule, ScheduleError, ScheduleLimits, Scheduled};
use oncegate::document::Resolution;
use oncegate::store::{Clock, MainStore, SystemClock};
use oncegate::{Ledger, WorkspaceName};
use oncegate_core::job::Failure;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

pub use events::{Event, tell};
pub use remote::LeaseRequest;
pub use view::ActionView;

use crate::audit::{self, Act, Audit, By, Receipt};

use crate::observe;
use crate::problem::Problem;
use crate::sends::Sends;
use crate::task::to_the_end;
use oncegate::worker::{ActionJobs, Handlers, NotRun, Queue, Run, Watcher};
use oncegate_config::{self as config, Config, HandlerKind};
use oncegate_transports::brokers::{AmqpPublisher, NatsPublisher};
use oncegate_transports::channels::lines::JsonLines;
use oncegate_transports::effect::Effect;
use oncegate_transports::trace;

pub struct Actions {
    pub actions: library::Actions,
    pub store: Arc<dyn MainStore>,
    pub main: Arc<Ledger>,
    pub queue: Arc<Queue>,
    /// Whether a worker's result is kept with its action.
    pub keeps_results: bool,
    handlers: Handlers,
}

/// An operation of a person on an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Cancel,
    Retry,
    RunNow,
    /// The person has found out that the action happened.
    Done,
    /// The person has found out that the action did not happen, and wants no retry.
    LetBe,
}

impl Verb {
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Cancel => "cancel",
            Verb::Retry => "retry",
            Verb::RunNow => "run-now",
            Verb::Done => "done",
            Verb::LetBe => "let-be",
        }
    }

    /// The name of the operation in the audit log.
    const fn audited(self) -> &'static str {
        match self {
            Verb::Cancel => "audit.action_cancelled",
            Verb::Retry => "audit.action_retried",
            Verb::RunNow => "audit.action_run_now",
            Verb::Done => "audit.action_done",
            Verb::LetBe => "audit.action_let_be",
        }
    }

    pub fn parse(name: &str) -> Option<Verb> {
        [Verb::Cancel, Verb::Retry, Verb::RunNow, Verb::Done, Verb::LetBe]
            .into_iter()
            .find(|verb| verb.as_str() == name)
    }
}

/// How the server runs actions of one type.
struct Handler {
    how: How,
    timeout: Duration,
}

enum How {
    Log(Arc<JsonLines>),
    Webhook(webhook::Webhook),
    Email(email::Email),
    Saga { event: Option<String>, sagas: oncegate::sagas::Sagas },
    Amqp { exchange: String, routing_key: Option<String>, publisher: Arc<AmqpPublisher> },
    Nats { subject: Option<String>, publisher: Arc<NatsPublisher> },
}

/// A line of `actions.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    at: String,
    #[serde(flatten)]
    effect: Effect<'a>,
}

#[async_trait]
impl oncegate::worker::Handler for Handler {
    async fn run(&self, run: &Run, payload: &RawValue) -> Result<Option<Box<RawValue>>, NotRun> {
        let about = &[("oncegate.action.id", &run.id as _), ("oncegate.action.type", &run.action_type as _)];
        trace::work("run action", &run.workspace, about, self.perform(Effect::of(run, payload))).await
    }
}

impl Handler {
    /// Performs the effect. Returns the receiver's answer, if it is worth keeping.
    async fn perform(&self, effect: Effect<'_>) -> Result<Option<Box<RawValue>>, NotRun> {
        let ran = match &self.how {
            How::Log(lines) => {
                let written = lines.write(&Line { at: SystemClock.now().to_string(), effect });
                // A full disk may have room later.
                written.map(|()| None).map_err(|failure| Failure { is_final: false, ..failure })
            }
            How::Webhook(webhook) => webhook.post(effect, self.timeout).await,
            How::Email(email) => return email.run(effect.workspace, effect, self.timeout).await,
            How::Saga { event, sagas } => saga::feed(sagas, event.as_deref(), effect.workspace, effect).await,
            How::Amqp { exchange, routing_key, publisher } => {
                let routing_key = routing_key.as_deref().unwrap_or(effect.action_type);
                publisher.publish((exchange, routing_key), effect, self.timeout).await
            }
            How::Nats { subject, publisher } => {
                publisher.publish(subject.as_deref().unwrap_or(effect.action_type), effect, self.timeout).await
            }
        };
        Ok(ran?)
    }
}

/// What the handlers are made from, and share.
struct Making<'a> {
    config: &'a Config,
    sagas: &'a oncegate::sagas::Sagas,
    sends: &'a Arc<Sends>,
    amqp: Option<Arc<AmqpPublisher>>,
    nats: Option<Arc<NatsPublisher>>,
    lines: Option<Arc<JsonLines>>,
}

impl Making<'_> {
    fn how(&mut self, kind: &HandlerKind) -> Result<How, String> {
        let allow: Arc<[IpNet]> = self.config.outgoing.allow.clone().into();
        Ok(match kind {
            HandlerKind::Log => {
                let opened = match &self.lines {
                    Some(lines) => lines.clone(),
                    None => Arc::new(JsonLines::open(&self.config.data_dir, "actions.jsonl")?),
                };
                How::Log(self.lines.insert(opened).clone())
            }
            HandlerKind::Webhook { url, allow_payload_url, secret_file } => {
                let payload = allow_payload_url.then(|| self.config.outgoing.allow_payload.clone().into());
                How::Webhook(webhook::Webhook::new(url.clone(), secret_file.as_deref(), allow, payload)?)
            }
            HandlerKind::Saga { event } => How::Saga { event: event.clone(), sagas: self.sagas.clone() },
            HandlerKind::Amqp { exchange, routing_key } => How::Amqp {
                exchange: exchange.clone(),
                routing_key: routing_key.clone(),
                publisher: self.amqp.clone().expect("checked with the configuration"),
            },
            HandlerKind::Nats { subject } => How::Nats {
                subject: subject.clone(),
                publisher: self.nats.clone().expect("checked with the configuration"),
            },
            HandlerKind::Email { .. } => How::Email(email::Email::new(kind, &allow, self.sends.clone())?),
        })
    }
}

impl Actions {
    /// Applies a person's operation, with the person and the reason in the log.
    pub async fn by_hand(
        self: Arc<Self>,
        audit: Arc<Audit>,
        workspace: WorkspaceName,
        id: Uuid,
        verb: Verb,
        by: By,
        why: Option<String>,
    ) -> Result<Found, Problem> {
        to_the_end(async move {
            // A line of the audit log is never removed. So an operation that the action's status does not allow writes no
            // line.
            let is_over = |found: &Found| found.job.is_none() && matches!(verb, Verb::Cancel | Verb::RunNow);
            let mut found = self.actions.find(&workspace, id).await?;
            if found.as_ref().is_none_or(is_over) {
                // A server that was replaced may have misled the first look: the second one is behind a commit.
                self.store.confirm().await?;
                found = self.actions.find(&workspace, id).await?;
            }
            let found = found.ok_or(Refused::Missing)?;
            if is_over(&found) {
                return Err(Refused::Status(found.status().as_str(), "it is not in the queue any more".into()).into());
            }
            let event = verb.audited();
            let act = Act::new(event, &workspace, ("action", id), &by, why.as_deref());
            let (found, receipt) =
                audit.act(act.clone(), self.apply_by_hand(&workspace, id, verb, &by.id, why.clone())).await?;
            let said = found.action.ended.as_ref().and_then(|ended| ended.resolved.as_ref());
            let resolves = matches!(verb, Verb::Done | Verb::LetBe);
            if resolves && said.is_some_and(|said| said.by != by.id || said.note != why) {
                audit.ended(act, &receipt, "unchanged", audit::SETTLED_BEFORE).await;
                return Ok(found);
            }
            let (by, Receipt { seq, hash }) = (by.id, receipt);
            // Logged as a warning, so that no usual log level hides it.
            tracing::warn!(event, %workspace, actionId = %id, by, why, auditSeq = seq, auditHash = hash);
            Ok(found)
        })
        .await
    }

    async fn apply_by_hand(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        verb: Verb,
        by: &str,
        why: Option<String>,
    ) -> Result<Found, Problem> {
        Ok(match verb {
            Verb::Cancel => {
                let found = self.actions.cancel(workspace, id).await?;
                Event::Ended(found.status()).tell(workspace, id, &found.action.action_type);
                found
            }
            Verb::Retry => self.actions.retry(workspace, id).await?,
            Verb::RunNow => self.actions.run_now(workspace, id).await?,
            Verb::Done | Verb::LetBe => {
                let resolution = Resolution { happened: verb == Verb::Done, by: by.to_owned(), note: why };
                self.actions.resolve(workspace, id, &resolution).await?
            }
        })
    }

    pub fn open(
        config: &Config,
        store: Arc<dyn MainStore>,
        main: Arc<Ledger>,
        sagas: &oncegate::sagas::Sagas,
        sends: &Arc<Sends>,
    ) -> Result<Arc<Actions>, String> {
        let mut making = Making {
            config,
            sagas,
            sends,
            amqp: config.amqp.url.clone().map(AmqpPublisher::new),
            nats: config.nats.url.clone().map(NatsPublisher::new),
            lines: None,
        };
        let mut handlers = Handlers::default();
        for (name, of_type) in &config.actions.types {
            let Some(kind) = &of_type.handler else { continue };
            if let HandlerKind::Webhook { secret_file: None, .. } = kind {
                tracing::warn!(event = "action.webhook_unsigned", actionType = name, hint = "write secret_file");
            }
            let how = making.how(kind).map_err(|error| format!("[actions.type.{name:?}]: {error}"))?;
            handlers.set(name, Arc::new(Handler { how, timeout: of_type.timeout }));
            for (workspace, kind) in &of_type.of_workspaces {
                let wrong = |error| format!("[workspace.{workspace}.actions.type.{name:?}]: {error}");
                let how = making.how(kind).map_err(wrong)?;
                let handler = Handler { how, timeout: of_type.timeout };
                handlers.set_for(workspace.clone(), name, Arc::new(handler));
            }
        }
        let limits = ScheduleLimits::new(Some(config.limits.schedules), Some(config.limits.schedule_interval));
        let config::Actions { lease, workers, .. } = config.actions;
        Ok(Arc::new(Actions {
            actions: library::Actions::over(store.clone()).limited(limits),
            keeps_results: config.privacy.store_outcome_body,
            queue: Queue::new(store.clone(), main.waiters().clone(), lease, workers),
            store,
            main,
            handlers,
        }))
    }

    /// Starts to lease the actions that this server runs.
    pub fn start(self: &Arc<Actions>, watcher: Arc<dyn Watcher>) {
        let kinds = self.handlers.kinds();
        if !kinds.is_empty() {
            let jobs = ActionJobs {
                actions: self.actions.clone(),
                queue: self.queue.clone(),
                handlers: self.handlers.clone(),
                watcher,
            };
            tokio::spawn(self.queue.clone().keep_leasing(kinds, Arc::new(jobs)));
        }
    }

    pub async fn schedule(&self, workspace: &WorkspaceName, schedule: Schedule) -> Result<Scheduled, ScheduleError> {
        let action_type = schedule.action_type().to_owned();
        let scheduled = self.actions.schedule(workspace, schedule).await.inspect_err(|error| {
            if let ScheduleError::TooMany { .. } = error {
                observe::limited(Some(workspace), "schedules");
            }
        })?;
        let event = match scheduled.outcome {
            Outcome::Created => Event::Scheduled,
            Outcome::Updated | Outcome::Dropped => Event::Deduplicated(scheduled.revision),
        };
        event.tell(workspace, scheduled.id, &action_type);
        Ok(scheduled)
    }
}
