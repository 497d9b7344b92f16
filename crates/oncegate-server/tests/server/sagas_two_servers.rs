//! Two servers on one PostgreSQL, a thousand searches, and every event delivered one to five times, concurrently, in random order: one
//! instance each, the right end, each command under one key, and no error in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::{On, Workshop, eventually};

const SEARCHES: usize = 1000;
const FILES: usize = 3;
/// The number of concurrent searches.
const AT_ONCE: usize = 24;

/// Pseudo-random numbers from a seed, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// Each event one to five times, in any order.
    fn deliveries(&mut self, events: &[Value]) -> Vec<Value> {
        let mut deliveries: Vec<Value> =
            events.iter().flat_map(|event| vec![event.clone(); 1 + self.below(5)]).collect();
        self.shuffle(&mut deliveries);
        deliveries
    }
}

fn event(name: &str, search: &str, data: Value) -> Value {
    let mut data = data;
    data["searchId"] = json!(search);
    json!({ "type": name, "id": format!("{name} {search} {}", data["fileId"]), "data": data })
}

/// Delivers all of them at once, on both servers in turn.
async fn deliver(shop: &Workshop, first: usize, deliveries: Vec<Value>) -> Vec<Value> {
    let all = deliveries.iter().enumerate().map(|(i, event)| shop.event(first + i, event));
    futures::future::join_all(all).await
}

/// One search, from its upload to its end. Returns whether it is one that fails.
async fn run(shop: &Workshop, number: usize, dice: &mut Dice) {
    let search = format!("search {number}");
    let files: Vec<String> = (0..FILES).map(|file| format!("{number}/{file}")).collect();
    let started = event("SearchUploadStarted", &search, json!({ "projectId": "p" }));
    let whole = json!({ "projectId": "p", "searchName": "n", "referenceFiles": files });
    let saved = event("SearchUploadSaved", &search, whole);
    // In either order.
    let mut told = deliver(shop, number, dice.deliveries(&[started.clone(), saved.clone()])).await;
    // The following events, with late ones among them.
    let mut events = vec![started, saved];
    events.extend(files.iter().map(|file| event("ReferenceFileParsingCompleted", &search, json!({ "fileId": file }))));
    if is_faulty(number) {
        events.pop();
        events.push(event("ReferenceFileFaulted", &search, json!({ "fileId": files[FILES - 1] })));
    }
    told.extend(deliver(shop, number, dice.deliveries(&events)).await);
    // Some events once more, after the end.
    told.extend(deliver(shop, number + 1, dice.deliveries(&events)).await);
    for one in told {
        assert!(["applied", "ignored", "duplicate"].contains(&one["result"].as_str().expect("a result")), "{one}");
    }
}

fn is_faulty(number: usize) -> bool {
    number.is_multiple_of(10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_thousand_searches_on_two_servers_whatever_comes_twice() {
    let shop = Arc::new(Workshop::open(On::Postgres).await);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    println!("seed {seed}");
    let next = Arc::new(AtomicUsize::new(0));
    let workers = (0..AT_ONCE).map(|worker| {
        let (shop, next) = (shop.clone(), next.clone());
        tokio::spawn(async move {
            let mut dice = Dice(seed ^ (worker as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= SEARCHES {
                    return;
                }
                run(&shop, number, &mut dice).await;
            }
        })
    });
    for worker in futures::future::join_all(workers).await {
        worker.expect("every delivery was answered rightly");
    }
    check_instances(&shop).await;
    // Each command was sent under one key, and arrived.
    let arrived = eventually("all commands have arrived", || async {
        let arrived = shop.provider.all();
        let keys: BTreeSet<String> = arrived.iter().map(|arrived| arrived.key.clone()).collect();
        (keys.len() >= SEARCHES * FILES).then_some(arrived)
    })
    .await;
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for one in arrived {
        keys.entry(one.body["fileId"].as_str().expect("a file").to_owned()).or_default().insert(one.key);
    }
    assert_eq!(keys.len(), SEARCHES * FILES, "each file was to be parsed");
    assert!(keys.values().all(|keys| keys.len() == 1), "each under one key");
    let mut shop = Arc::into_inner(shop).expect("nobody else has it");
    for server in shop.servers.drain(..) {
        let (status, log) = server.stop();
        assert!(status.success());
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for line in lines {
            assert_ne!(line["level"], "error", "{line}");
            // The only warning is about data that is missing after a late start.
            assert!(
                line["level"] != "warn"
                    || line["event"] == "saga.incomplete"
                    || line["event"] == "action.webhook_unsigned",
                "{line}"
            );
        }
    }
}

/// One instance each, in the right state.
async fn check_instances(shop: &Workshop) {
    let mut states: BTreeMap<String, String> = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page = shop
            .client(0)
            .get(&format!("/api/sagas?definition=search-import&limit=500{cursor}"))
            .await
            .expect(200)
            .body;
        for item in page["items"].as_array().expect("a list") {
            let text = |field: &str| item[field].as_str().expect("a text").to_owned();
            assert_eq!(states.insert(text("correlationId"), text("state")), None, "one instance: {item}");
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(states.len(), SEARCHES);
    for number in 0..SEARCHES {
        let state = &states[&format!("search {number}")];
        assert_eq!(state, if is_faulty(number) { "Error" } else { "Completed" }, "search {number}");
    }
}
