use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use oncegate::store::MemoryStore;

use super::check::{Anchor, Broken, check};
use super::*;
use crate::messages::tests::Unanswered;

fn workspace() -> WorkspaceName {
    WorkspaceName::new("acme").unwrap()
}

fn act(subject: usize) -> Act {
    let by = By { id: "k1".into(), name: Some("the till".into()) };
    Act::new("audit.forget", &workspace(), ("claim", subject), &by, Some("it never came")).about("guard", "charge")
}

async fn chain_of(lines: usize) -> Arc<dyn MainStore> {
    let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
    let audit = Audit::new(store.clone());
    for line in 0..lines {
        audit.begin(&act(line)).await.unwrap();
    }
    store
}

async fn lines_of(store: &dyn MainStore) -> Vec<Line> {
    list(store, &workspace(), 500, None).await.unwrap().lines
}

#[tokio::test]
async fn lines_are_chained_from_the_first_on() {
    let store = chain_of(3).await;
    let lines = lines_of(&*store).await;
    assert_eq!(lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [3, 2, 1]);
    assert!(lines[0].prev == lines[1].hash && lines[1].prev == lines[2].hash && lines[2].prev == "0".repeat(64));
    assert_eq!((lines[0].by.as_str(), lines[0].by_name.as_deref()), ("k1", Some("the till")));
    assert_eq!((lines[0].why.as_deref(), lines[0].about["guard"].as_str()), (Some("it never came"), "charge"));
    let whole = check(&*store, &workspace(), &[]).await.unwrap().unwrap();
    assert_eq!((whole.lines, whole.hash), (3, lines[0].hash.clone()));
    let empty = check(&*store, &WorkspaceName::default_workspace(), &[]).await.unwrap().unwrap();
    assert_eq!(empty.lines, 0, "each workspace has a chain of its own");
}

#[tokio::test]
async fn an_act_that_failed_or_may_have_been_done_has_a_second_line() {
    let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
    let audit = Audit::new(store.clone());
    for (error, result) in
        [(StoreError::Unavailable("away".into()), "failed"), (StoreError::Unknown("no answer".into()), "unknown")]
    {
        let done = audit.act(act(1), async { Err::<(), _>(error) }).await;
        assert!(done.is_err());
        let lines = lines_of(&*store).await;
        assert_eq!((lines[0].result.as_str(), lines[0].of), (result, Some(lines[1].seq)));
        assert_eq!(lines[1].result, "begun");
    }
}

#[tokio::test]
async fn a_page_ends_where_the_next_one_begins() {
    let store = chain_of(5).await;
    let mut seen = vec![];
    let mut before = None;
    loop {
        let page = list(&*store, &workspace(), 2, before).await.unwrap();
        seen.extend(page.lines.iter().map(|line| line.seq));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
}

/// Replaces or removes a line without the log.
async fn tamper(store: &dyn MainStore, seq: u64, with: Option<Vec<u8>>) {
    let record = store.find(&[place(&workspace(), seq)]).await.unwrap().value.remove(0).unwrap();
    let change = match with {
        Some(body) => Change::replace(Record { version: record.version + 1, body: body.into(), ..record }),
        None => Change::Remove { record, names: vec![name(seq)], lists: vec![] },
    };
    assert!(store.commit(Commit { ops: vec![], changes: vec![change] }).await.unwrap().is_written());
}

#[tokio::test]
async fn a_line_that_was_removed_or_changed_is_named() {
    let broken = async |store: &dyn MainStore| check(store, &workspace(), &[]).await.unwrap().unwrap_err();
    let removed = chain_of(600).await;
    tamper(&*removed, 300, None).await;
    assert_eq!(broken(&*removed).await, Broken { seq: 300, why: "it is missing" });

    let changed = chain_of(5).await;
    let line = lines_of(&*changed).await.remove(2);
    let other = Line { why: Some("it came".into()), ..line.clone() };
    tamper(&*changed, 3, Some(serde_json::to_vec(&other).unwrap())).await;
    assert_eq!(broken(&*changed).await.seq, 3);
    // With a hash that fits its new content, the next line no longer follows it.
    let other = Line { hash: other.digest(), ..other };
    tamper(&*changed, 3, Some(serde_json::to_vec(&other).unwrap())).await;
    assert_eq!(broken(&*changed).await.seq, 4);
    tamper(&*changed, 3, Some(b"{}".to_vec())).await;
    assert_eq!(broken(&*changed).await.seq, 3);
    // The log continues, and the chain stays broken at the same line.
    Audit::new(changed.clone()).begin(&act(9)).await.unwrap();
    assert_eq!(broken(&*changed).await.seq, 3);
}

#[tokio::test]
async fn an_end_that_was_cut_off_is_seen_by_an_anchor_alone() {
    let store = chain_of(3).await;
    let last = lines_of(&*store).await.remove(0);
    let anchor = Anchor { seq: 3, hash: last.hash.clone() };
    assert!(check(&*store, &workspace(), std::slice::from_ref(&anchor)).await.unwrap().is_ok());
    tamper(&*store, 3, None).await;
    assert!(check(&*store, &workspace(), &[]).await.unwrap().is_ok());
    let cut = check(&*store, &workspace(), std::slice::from_ref(&anchor)).await.unwrap().unwrap_err();
    assert_eq!(cut.seq, 3);
    Audit::new(store.clone()).begin(&act(9)).await.unwrap();
    assert_eq!(check(&*store, &workspace(), &[anchor]).await.unwrap().unwrap_err().seq, 3, "written anew");
    assert!("3:abc".parse::<Anchor>().is_err() && format!("3:{}", last.hash).parse::<Anchor>().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_at_once_lose_no_line_and_write_none_twice() {
    let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
    let servers: Vec<_> = (0..4).map(|_| Audit::new(store.clone())).collect();
    let number = AtomicUsize::new(0);
    let writers = (0..40).map(|at| {
        let (audit, number) = (servers[at % 4].clone(), &number);
        async move {
            for _ in 0..5 {
                audit.begin(&act(number.fetch_add(1, Ordering::SeqCst))).await.unwrap();
            }
        }
    });
    join_all(writers).await;
    assert_eq!(check(&*store, &workspace(), &[]).await.unwrap().unwrap().lines, 200);
    let mut subjects: Vec<usize> = lines_of(&*store).await.iter().map(|line| line.subject.parse().unwrap()).collect();
    subjects.sort_unstable();
    assert_eq!(subjects, (0..200).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_act_that_fails_has_a_second_line_that_says_so() {
    let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
    let audit = Audit::new(store.clone());
    let failed: Result<((), _), Problem> =
        audit.act(act(1), async { Err(crate::problem::Kind::NotFound.because("there is none")) }).await;
    assert!(failed.is_err());
    let (done, receipt) = audit.act::<_, Problem>(act(2), async { Ok("done") }).await.unwrap();
    let lines = lines_of(&*store).await;
    let told: Vec<_> = lines.iter().map(|line| (line.seq, line.result.as_str(), line.of)).collect();
    assert_eq!(told, [(3, "begun", None), (2, "failed", Some(1)), (1, "begun", None)]);
    assert_eq!(lines[1].detail.as_deref(), Some("not-found: there is none"));
    assert_eq!((done, receipt.seq, receipt.hash), ("done", 3, lines[0].hash.clone()));
}

/// A line whose commit was not acknowledged exists once, whether the commit was written or not.
#[tokio::test]
async fn a_line_whose_answer_was_lost_is_written_once() {
    for is_written in [true, false] {
        let store: Arc<dyn MainStore> = Arc::new(Unanswered::new(is_written));
        let audit = Audit::new(store.clone());
        for subject in 0..3 {
            assert_eq!(audit.begin(&act(subject)).await.unwrap().seq, subject as u64 + 1, "written: {is_written}");
        }
        let subjects: Vec<String> = lines_of(&*store).await.into_iter().rev().map(|line| line.subject).collect();
        assert_eq!(subjects, ["0", "1", "2"], "written: {is_written}");
        assert_eq!(check(&*store, &workspace(), &[]).await.unwrap().unwrap().lines, 3);
    }
}
