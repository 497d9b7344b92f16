//! The send log in the server. Remote workers ask over HTTP, the built-in workers in the process. This module handles
//! leases that end, and asks the reconcile hook.
//!
//! The library (`oncegate::sends`) defines what a send is and which worker may send it.

mod events;
mod hook;
mod view;

use std::sync::Arc;

use async_trait::async_trait;
use oncegate::sends as library;
use oncegate::sends::{Begin, Begun, JOB, Kept, NotTaken, Options, Resolution};
use oncegate::store::MainStore;
use oncegate::{Ledger, StoreError, WorkspaceName};
use uuid::Uuid;

pub use events::COUNTER;
pub use events::Event;
pub use view::{ResolvedView, SendView};

use crate::audit::{Act, Audit, By, Receipt};
use hook::{Hook, Said};
use oncegate::worker::{Queue, Reconcile, SendJobs, Watcher};
use oncegate_config::Config;
use oncegate_transports::trace;

/// The name of the reconcile hook in stored records and in the log.
const HOOK: &str = "reconcile hook";

pub struct Sends {
    pub sends: library::Sends,
    pub queue: Arc<Queue>,
    pub audit: Arc<Audit>,
    hook: Option<Hook>,
}

/// The options from the configuration.
pub fn options(config: &Config) -> Options {
    Options {
        lost: config.sends.lost,
        lease: config.sends.lease,
        keep: config.sends.keep,
        store_parts: config.privacy.store_parts,
    }
}

impl Sends {
    pub fn new(config: &Config, store: Arc<dyn MainStore>, ledger: Arc<Ledger>, queue: Arc<Queue>) -> Arc<Sends> {
        let hook = config
            .sends
            .reconcile_url
            .clone()
            .map(|url| Hook::new(url, config.outgoing.allow.clone().into(), config.outgoing.timeout));
        let audit = Audit::new(store.clone());
        Arc::new(Sends { sends: library::Sends::over(store, ledger, options(config)), queue, audit, hook })
    }

    /// Starts to handle leases that end.
    pub fn start(self: &Arc<Sends>, watcher: Arc<dyn Watcher>) {
        let jobs = SendJobs {
            sends: self.sends.clone(),
            reconcile: self.hook.is_some().then(|| self.clone() as Arc<dyn Reconcile>),
            watcher,
        };
        tokio::spawn(self.queue.clone().keep_leasing(vec![JOB.to_owned()], Arc::new(jobs)));
    }

    /// A worker is about to send. If the send is unknown, the hook is asked first: the worker that asks can still send it.
    pub async fn begin(self: &Arc<Sends>, workspace: &WorkspaceName, begin: &Begin) -> Result<Begun, StoreError> {
        let mut begun = self.sends.begin(workspace, begin).await?;
        if let (Begun::Unknown { id }, Some(_)) = (&begun, &self.hook)
            && let Some((kept, _)) = self.sends.find(workspace, *id).await?
        {
            let log = self.clone();
            // Runs on a task of its own, so that the audit line is written even if the client hangs up.
            if tokio::spawn(trace::carried(async move { log.reconcile(&kept).await })).await.unwrap_or(false) {
                begun = self.sends.begin(workspace, begin).await?;
            }
        }
        events::begun(workspace, self.sends.claim_id(workspace, begin), &begun);
        Ok(begun)
    }

    /// Logs and counts what a worker's report did.
    pub fn told(&self, workspace: &WorkspaceName, id: Uuid, told: Result<Kept, NotTaken>) -> Result<Kept, NotTaken> {
        match &told {
            Ok(kept) => Event::Stands(kept.document.state).tell(workspace, id),
            Err(NotTaken::Fenced(_)) => Event::Fenced.tell(workspace, id),
            Err(_) => {}
        }
        told
    }

    pub async fn resolve(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        sent: bool,
        esp_message_id: Option<String>,
        by: By,
        note: Option<String>,
    ) -> Result<Kept, NotTaken> {
        let act = resolved(workspace, id, sent, &by, note.as_deref());
        let resolution = Resolution { happened: sent, by: by.id.clone(), note: note.clone() };
        let (kept, receipt) =
            self.audit.act(act, self.sends.resolve(workspace, id, &resolution, esp_message_id)).await?;
        tell(workspace, id, sent, &by, note.as_deref(), &receipt);
        Ok(kept)
    }
}

#[async_trait]
impl Reconcile for Sends {
    async fn reconcile(&self, kept: &Kept) -> bool {
        let Some(hook) = &self.hook else { return false };
        let asked =
            trace::call("ask reconcile hook", &kept.workspace, &[("oncegate.send.id", &kept.id)], hook.ask(kept));
        let (sent, esp_message_id) = match asked.await {
            Said::Sent(esp_message_id) => (true, esp_message_id),
            Said::NotSent => (false, None),
            Said::Nothing(why) => {
                tracing::warn!(event = "send.not_reconciled", workspace = %kept.workspace, sendId = %kept.id, why);
                return false;
            }
        };
        let act = resolved(&kept.workspace, kept.id, sent, &By::from(HOOK), None);
        let resolution = Resolution { happened: sent, by: HOOK.to_owned(), note: None };
        match self.audit.act(act, self.sends.reconcile(kept, &resolution, esp_message_id)).await {
            Ok((_, receipt)) => {
                tell(&kept.workspace, kept.id, sent, &By::from(HOOK), None, &receipt);
                true
            }
            // The send was settled by another request in the meantime, which serves as well.
            Err(NotTaken::Wrong(_)) => true,
            Err(error) => {
                tracing::warn!(event = "send.not_reconciled", workspace = %kept.workspace, sendId = %kept.id, %error);
                false
            }
        }
    }
}

/// The line of the audit log, which is written before the decision is applied.
fn resolved(workspace: &WorkspaceName, id: Uuid, sent: bool, by: &By, note: Option<&str>) -> Act {
    Act::new("audit.send_resolved", workspace, ("send", id), by, note).about("sent", sent)
}

fn tell(workspace: &WorkspaceName, id: Uuid, sent: bool, by: &By, note: Option<&str>, receipt: &Receipt) {
    Event::Resolved.tell(workspace, id);
    let (by, Receipt { seq, hash }) = (&by.id, receipt);
    // Logged as a warning, so that no usual log level hides it.
    tracing::warn!(event = "audit.send_resolved", %workspace, sendId = %id, sent, by, why = note, auditSeq = seq, auditHash = hash);
}
