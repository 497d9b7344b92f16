//! Messages of brokers: their events are committed before they are acknowledged.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oncegate::sagas::Event;
use oncegate::{StoreError, WorkspaceName};
use oncegate_config::Config;
use oncegate_process::crash;
use oncegate_transports::brokers::{Consumers, Incoming, Intake, Taker};
use uuid::Uuid;

use crate::events::{Media, Received, is_good_id, read};
use crate::problem::Problem;
use crate::sagas::Sagas;
use crate::tenants::{Tenant, Tenants};

/// The pause between two attempts to commit a message's events while the store is unreachable. The message is not given
/// back meanwhile: a broker may count its deliveries and drop it.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Starts to consume the queues that the configuration names.
pub fn start(config: &Config, sagas: &Arc<Sagas>, tenants: &Tenants) -> Consumers {
    let body_max = config.limits.event_body_bytes;
    Consumers::start(config, |workspace| {
        let (workspace, sagas, tenant) = (workspace.clone(), sagas.clone(), tenants.of(workspace));
        Arc::new(Events { workspace, tenant, body_max, sagas })
    })
}

/// The destination of a queue's messages: the sagas of a workspace.
struct Events {
    workspace: WorkspaceName,
    /// Events of a queue wait for permits of their workspace, as events over HTTP do.
    tenant: Arc<Tenant>,
    /// A larger message is not even parsed.
    body_max: usize,
    sagas: Arc<Sagas>,
}

#[async_trait]
impl Taker for Events {
    async fn take(&self, intake: &Intake, message: &dyn Incoming) {
        let queue = &intake.queue;
        let mut pause = RETRY_MIN;
        // Parsed once, so that a retry has the same events under the same ids.
        let brought = self.read(message);
        let mut is_paid = false;
        loop {
            let handled = match self.admit(&brought, &mut is_paid) {
                Ok(()) => self.handle(&brought).await,
                // The message stays with the broker until there is room.
                Err(over) => Err(StoreError::Unavailable(over.detail.into_owned())),
            };
            match handled {
                Ok(()) => break,
                // The store can never keep this message. The broker may have a dead letter queue for it.
                Err(error @ (StoreError::Refused(_) | StoreError::Unreadable(_))) => {
                    tracing::error!(event = "broker.rejected", queue, %error);
                    return message.reject().await;
                }
                Err(error) => tracing::warn!(event = "broker.not_committed", queue, %error),
            }
            message.in_progress().await;
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                () = intake.stopped() => return,
            }
        }
        self.tenant.stores(1, message.body().len());
        crash::point("broker.handled").await;
        if !message.acknowledge().await {
            // The message will be delivered again, and is then a duplicate.
            tracing::info!(event = "broker.not_acknowledged", queue);
        }
    }
}

impl Events {
    /// The workspace's rate and quota also apply to events from brokers. A message pays once.
    fn admit(&self, brought: &Brought, is_paid: &mut bool) -> Result<(), Problem> {
        self.tenant.check_quota()?;
        if !*is_paid {
            self.tenant.pay()?;
            *is_paid = true;
            if let Brought::Events(events) = brought {
                self.tenant.owe(events.len().saturating_sub(1));
            }
        }
        Ok(())
    }

    fn read(&self, message: &dyn Incoming) -> Brought {
        let (body, content_type) = (message.body(), message.content_type());
        let media = match content_type {
            // Many senders give no content type.
            None | Some("") => Some(Media::Json),
            Some(content_type) => Media::of(content_type),
        };
        let received = match media {
            _ if body.len() > self.body_max => {
                Err(format!("it has {} bytes; events have at most {}", body.len(), self.body_max))
            }
            Some(media) => read(media, body).map_err(|problem| problem.detail.into_owned()),
            None => Err(format!("the content type is {content_type:?}; it should be application/json")),
        };
        let Received { mut events, is_list } = match received {
            Ok(received) => received,
            Err(why) => return Brought::NoEvent { raw: text_of(body), why },
        };
        // Events without ids get the message's id. If the message has none either, only retries of this delivery are
        // recognised as duplicates.
        let own = message.id().filter(|id| is_good_id(id)).map(str::to_owned);
        let own = own.unwrap_or_else(|| format!("unnamed {}", Uuid::now_v7()));
        for (i, event) in events.iter_mut().enumerate() {
            event.id.get_or_insert_with(|| if is_list { format!("{own}#{i}") } else { own.clone() });
        }
        Brought::Events(events.into_iter().map(Arc::new).collect())
    }

    async fn handle(&self, brought: &Brought) -> Result<(), StoreError> {
        match brought {
            Brought::Events(events) => {
                self.sagas.handle(&self.workspace, events, self.tenant.lookups()).await.map(drop)
            }
            // The broker will not deliver this message again, so it is kept as a dead letter.
            Brought::NoEvent { raw, why } => {
                self.sagas.bury_raw(&self.workspace, raw.clone(), why.clone()).await.map(drop)
            }
        }
    }
}

/// The content of a message.
enum Brought {
    Events(Vec<Arc<Event>>),
    NoEvent { raw: String, why: String },
}

/// The body as text; bytes that are not UTF-8 as base64.
fn text_of(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", STANDARD.encode(body)),
    }
}
