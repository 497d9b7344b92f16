//! The cache returns records as they are in the file, and an undone commit undoes no other commit of its group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_core::{Answer, Command, WorkspaceName};
use oncegate_sqlite::{Options, SqliteStore};
use oncegate_store::conformance::{START, key_in, terms};
use oncegate_store::{At, Change, Clock, Commit, DuplicateCount, MainStore, ManualClock, Op, Place, Record, Store};
use uuid::Uuid;

const KIND: &str = "note";

struct File {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl File {
    fn new() -> Self {
        File { folder: tempfile::tempdir().expect("a folder"), clock: Arc::new(ManualClock::starting_at(START)) }
    }

    /// Opens the file as another process would.
    fn open(&self) -> SqliteStore {
        self.open_with(Options::default().claims_max)
    }

    fn open_with(&self, claims_max: usize) -> SqliteStore {
        let options = Options { clock: self.clock.clone(), claims_max, ..Options::default() };
        SqliteStore::open(self.folder.path().join("x.db"), options).expect("opens")
    }
}

fn record(number: u128, version: i64, body: &str) -> Record {
    Record {
        workspace: WorkspaceName::default_workspace(),
        kind: KIND,
        id: Uuid::from_u128(number),
        version,
        state: None,
        expires_at: None,
        body: format!("{{\"is\":{body:?}}}").into(),
    }
}

fn create(number: u128, names: &[&str]) -> Change {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Change::Create { record: record(number, 1, "new"), names, lists: vec![] }
}

fn changes(changes: Vec<Change>) -> Commit {
    Commit { ops: vec![], changes }
}

fn claims(part: &str) -> Commit {
    Op { key: key_in("default", part), command: Command::Claim(terms()) }.into()
}

fn at(at: At) -> Place {
    Place { workspace: WorkspaceName::default_workspace(), kind: KIND, at }
}

fn by_id(number: u128) -> Place {
    at(At::Id(Uuid::from_u128(number)))
}

fn by_name(name: &str) -> Place {
    at(At::Name(name.to_owned()))
}

async fn find(store: &SqliteStore, place: Place) -> Option<Record> {
    store.find(&[place]).await.expect("finds").value.remove(0)
}

async fn is_written(store: &SqliteStore, commit: Commit) -> bool {
    store.commit(commit).await.expect("decides").is_written()
}

/// Only the writes that the failed commit made before its conflict are undone. This also holds in the next group, which uses
/// savepoints, and in the group after that.
#[tokio::test]
async fn a_conflict_in_the_middle_of_a_group_takes_none_of_the_others_along() {
    let file = File::new();
    let store = file.open();
    assert!(is_written(&store, changes(vec![create(1, &["taken"])])).await);
    for round in 1..=4_u128 {
        let part = |what: &str| format!("{what} {round}");
        let number = |n: u128| round * 100 + n;
        let mut conflict = claims(&part("undone"));
        conflict.changes = vec![create(number(1), &[]), create(number(2), &["taken"])];
        // This commit conflicts before it writes anything.
        let at_once =
            changes(vec![Change::replace(record(1, 9, "of a version that is not there")), create(number(3), &[])]);
        let good = changes(vec![create(number(4), &[&part("name")]), create(number(5), &[])]);
        let counts = changes(vec![Change::replace(record(1, round as i64 + 1, &part("changed")))]);
        let group = vec![claims(&part("a")), at_once, good, conflict, counts, claims(&part("b")), claims(&part("a"))];
        let group: Vec<_> = store.commit_all(group).await.into_iter().map(|done| done.expect("decides")).collect();
        let written: Vec<bool> = group.iter().map(|done| done.is_written()).collect();
        assert_eq!(written, [true, false, true, false, true, true, false], "{round}");
        assert_eq!((group[1].conflict, group[3].conflict), (Some(0), Some(1)));
        assert!(matches!(group[6].answers[..], [Answer::InFlight(_)]));
        for store in [&store, &file.open()] {
            for (n, is_there) in [(1, false), (2, false), (3, false), (4, true), (5, true)] {
                assert_eq!(find(store, by_id(number(n))).await.is_some(), is_there, "{n} of round {round}");
            }
            let expected = Some(record(1, round as i64 + 1, &part("changed")));
            assert_eq!(find(store, by_name("taken")).await, expected);
            let undone = store.read(&key_in("default", &part("undone"))).await.expect("reads").value;
            assert!(undone.is_none(), "its claim is not written either");
        }
    }
}

/// The same for an error, in a group with a sweep and a count. The other jobs are run again, and take effect once.
#[tokio::test]
async fn what_fails_after_it_has_written_something_is_undone_and_the_others_happen_once() {
    let file = File::new();
    let store = file.open_with(2);
    assert!(is_written(&store, claims("met")).await);
    let met = store.read(&key_in("default", "met")).await.expect("reads").value.expect("is there");
    let ended = Record { expires_at: Some(START), ..record(9, 1, "ends") };
    assert!(is_written(&store, changes(vec![Change::create(ended)])).await);
    for round in 1..=3_u128 {
        let mut too_many = claims("one of two");
        too_many.ops.extend(claims("the other").ops);
        too_many.changes = vec![create(round, &[])];
        let count = DuplicateCount { key: met.key.clone(), token: met.token, count: 1, last_at: START };
        // Submitted at once, the jobs share one group, or a few.
        let (failed, good, swept, counted) = tokio::join!(
            store.commit(too_many),
            store.commit(changes(vec![create(100 + round, &[])])),
            store.sweep(10),
            store.count_duplicates(vec![count]),
        );
        failed.expect_err("there is room for one only");
        counted.expect("counts");
        assert!(good.expect("decides").is_written());
        assert_eq!(swept.expect("sweeps").records, usize::from(round == 1));
        for store in [&store, &file.open()] {
            assert!(find(store, by_id(round)).await.is_none());
            assert!(find(store, by_id(100 + round)).await.is_some());
            assert!(find(store, by_id(9)).await.is_none(), "swept");
            let met = store.read(&met.key).await.expect("reads").value.expect("is there");
            assert_eq!(met.duplicates, round as i64);
            assert!(store.read(&key_in("default", "one of two")).await.expect("reads").value.is_none());
        }
    }
    assert!(is_written(&store, claims("one of two")).await, "the room is still there");
}

/// A deterministic sequence of pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Two processes change the same few records in turn. Each finds, by id or by name, what was committed last. Some bodies are
/// too large for the cache, ids and names are reused after a removal, and some records are swept.
#[tokio::test]
async fn what_is_found_is_what_was_committed_last_by_whomever() {
    const IDS: u64 = 12;
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let file = File::new();
    let stores = [file.open(), file.open()];
    let mut random = Numbers(7);
    let mut model: BTreeMap<u128, (Record, Vec<String>)> = BTreeMap::new();
    for step in 0..3_000 {
        // Mostly the same store, so that its cache is used.
        let store = &stores[usize::from(random.below(20) == 0)];
        let number = u128::from(random.below(IDS));
        let name = NAMES[random.below(NAMES.len() as u64) as usize].to_owned();
        let body = if random.below(5) == 0 { "long ".repeat(400) } else { format!("step {step}") };
        let expires_at = (random.below(4) == 0).then_some(file.clock.now() + Duration::from_secs(30));
        let names = if random.below(2) == 0 { vec![name.clone()] } else { vec![] };
        let is_taken = model.values().any(|(record, has)| record.id.as_u128() != number && has.contains(&name));
        match (random.below(8), model.get(&number).cloned()) {
            (0, Some((record, names))) => {
                let remove = Change::Remove { record, names, lists: vec![] };
                assert!(is_written(store, changes(vec![remove])).await);
                model.remove(&number);
            }
            (1, _) => {
                file.clock.advance(Duration::from_secs(10));
                let now = file.clock.now();
                let ended =
                    model.values().filter(|(record, _)| record.expires_at.is_some_and(|end| end <= now)).count();
                assert_eq!(store.sweep(100).await.expect("sweeps").records, ended);
                model.retain(|_, (record, _)| record.expires_at.is_none_or(|end| end > now));
            }
            (_, before) => {
                let version = before.as_ref().map_or(1, |(record, _)| record.version + 1);
                let record = Record { expires_at, ..record(number, version, &body) };
                let change = match &before {
                    None => Change::Create { record: record.clone(), names: names.clone(), lists: vec![] },
                    Some(_) => Change::Replace { record: record.clone(), names: names.clone() },
                };
                let is_free = names.is_empty() || !is_taken;
                assert_eq!(is_written(store, changes(vec![change])).await, is_free, "step {step}");
                if is_free {
                    let mut all = before.map_or(vec![], |(_, names)| names);
                    all.extend(names.into_iter().filter(|name| !all.contains(name)).collect::<Vec<_>>());
                    model.insert(number, (record, all));
                }
            }
        }
        for store in &stores {
            let (number, name) = (u128::from(random.below(IDS)), NAMES[random.below(NAMES.len() as u64) as usize]);
            let named = model.values().find(|(_, names)| names.iter().any(|has| has == name));
            let expected = [model.get(&number), named].map(|found| found.map(|(record, _)| record.clone()));
            // The second lookup is answered from the cache, if the record fits.
            for _ in 0..2 {
                let found = store.find(&[by_id(number), by_name(name)]).await.expect("finds").value;
                assert_eq!(found, expected, "step {step}");
            }
        }
    }
}

/// Records that are always changed together are never seen in different versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_is_looked_up_together_has_stood_beside_each_other() {
    const CHANGES: i64 = 2_000;
    let file = File::new();
    let store = Arc::new(file.open());
    assert!(is_written(&store, changes(vec![create(1, &["one"]), create(2, &[])])).await);
    let is_over = Arc::new(AtomicBool::new(false));
    let readers = (0..2).map(|_| {
        let (store, is_over) = (store.clone(), is_over.clone());
        tokio::spawn(async move {
            let mut last = 0;
            while !is_over.load(Ordering::SeqCst) {
                let found = store.find(&[by_name("one"), by_id(2)]).await.expect("finds").value;
                let versions: Vec<i64> = found.into_iter().flatten().map(|record| record.version).collect();
                assert!(versions[0] == versions[1] && versions[0] >= last, "{versions:?} after {last}");
                last = versions[0];
                tokio::task::yield_now().await;
            }
            last
        })
    });
    let readers: Vec<_> = readers.collect();
    for version in 2..=CHANGES {
        let both = [1, 2].map(|number| Change::replace(record(number, version, "changed")));
        assert!(is_written(&store, changes(both.to_vec())).await);
        let found = find(&store, by_id(1)).await.expect("it is there");
        assert_eq!(found.version, version, "who has written it finds it");
    }
    is_over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.expect("never apart");
    }
}
