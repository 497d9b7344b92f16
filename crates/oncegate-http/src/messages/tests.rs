//! A send whose begin commit gets no answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use oncegate::store::{Commit, Committed, JobListing, KindFilter, MainStore, MemoryStore, Store, StoreError};
use oncegate_core::job::{Job, State};
use oncegate_store::conformance::Wrapper;

use oncegate::Ledger;
use oncegate::worker::Queue;
use tokio::sync::oneshot;

use super::body::PostBody;
use super::*;
use oncegate_config::Config;
use oncegate_transports::channels::Channels;

/// The commit that records that a send begins: the one after the commit that accepts the message.
const BEGIN: usize = 2;

/// A store that gives no answer to its second commit.
pub(crate) struct Unanswered {
    store: MemoryStore,
    commits: AtomicUsize,
    is_written: bool,
}

impl Unanswered {
    pub(crate) fn new(is_written: bool) -> Unanswered {
        Unanswered { store: MemoryStore::default(), commits: AtomicUsize::new(0), is_written }
    }
}

#[async_trait]
impl Wrapper for Unanswered {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        if self.commits.fetch_add(1, Ordering::SeqCst) + 1 != BEGIN {
            return self.store.commit(commit).await;
        }
        if self.is_written {
            assert!(self.store.commit(commit).await?.is_written());
        }
        Err(StoreError::Unknown("the answer got lost".into()))
    }
}

/// How many messages were sent, and the job that is left in the queue, when the begin commit gets no answer.
async fn sent_and_queued(is_written: bool) -> (usize, Option<Job>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("oncegate.toml"), "[messages]\nsend_wait = \"100ms\"\n").unwrap();
    let mut config = Config::load_from(folder.path(), vec![], vec![], None).ok().unwrap().config;
    config.data_dir = folder.path().join("data");
    let store = Arc::new(Unanswered::new(is_written));
    let main = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let queue = Queue::new(store.clone(), main.waiters().clone(), config.messages.options.lease, 1);
    let channels = Arc::new(Channels::open(&config).unwrap());
    let messages = messages::Messages::<Reply>::over(
        store.clone(),
        main,
        None,
        channels,
        queue,
        config.messages.options.clone(),
        Arc::new(crate::jobs::ServerWatcher),
    );
    let post = PostBody::read(br#"{"recipientPhone":"+1","message":"once"}"#).unwrap();
    let (answer, answered) = oneshot::channel();
    let workspace = WorkspaceName::new("default").unwrap();
    messages.post_to_end(workspace.clone(), None, post, answer).await;
    answered.await.unwrap().ok().unwrap();
    let sent = std::fs::read_to_string(config.data_dir.join("sends.jsonl")).unwrap_or_default().lines().count();
    let listing = JobListing {
        workspace,
        kind: KindFilter::Is(messages::JOB.into()),
        lane_prefix: None,
        state: None,
        limit: 1,
        before: None,
    };
    (sent, store.list_jobs(listing).await.unwrap().pop())
}

#[tokio::test]
async fn a_begin_that_was_written_and_not_answered_is_found_and_the_message_is_sent() {
    assert_eq!(sent_and_queued(true).await, (1, None));
}

#[tokio::test]
async fn a_begin_that_was_not_written_sends_nothing_and_leaves_the_job_to_the_next_worker() {
    let (sent, queued) = sent_and_queued(false).await;
    let job = queued.unwrap();
    assert_eq!((sent, job.state, job.begun, job.tried), (0, State::Pending, false, 0));
}
