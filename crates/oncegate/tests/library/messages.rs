//! Messages without a server, on each store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::document::Resolution;
use oncegate::job::{Delivery, Failure};
use oncegate::messages::{
    Answered, Asked, Contact, Message, Messages, Options, Post, Posted, Refused, Status, resolve,
};
use oncegate::worker::{Channel, Outgoing, Receipt, Sent};
use oncegate::{Gate, Scoped, WorkspaceName};
use uuid::Uuid;

use crate::support::{On, World, on_each};

on_each![
    the_same_message_is_sent_once,
    a_request_with_a_known_key_gets_the_first_answer_again,
    a_message_that_its_post_could_not_send_is_sent_by_a_worker,
    a_message_that_may_have_been_sent_is_settled_by_a_person_and_released,
    a_post_that_is_dropped_is_sent_all_the_same,
];

/// What the channel answers, one after the other, and the ids that it was given.
#[derive(Clone, Default)]
struct Carrier {
    answers: Arc<Mutex<Vec<Sent>>>,
    got: Arc<Mutex<Vec<Uuid>>>,
    honours_key: bool,
}

impl Carrier {
    fn got(&self) -> Vec<Uuid> {
        self.got.lock().expect("no holder panics").clone()
    }
}

#[async_trait]
impl Channel for Carrier {
    async fn send(&self, outgoing: &Outgoing<'_>, _within: Duration) -> Sent {
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.got.lock().expect("no holder panics").push(outgoing.id);
        let answer = self.answers.lock().expect("no holder panics").pop();
        answer.unwrap_or_else(|| Ok(Receipt { provider_message_id: Some("p1".into()) }))
    }

    fn delivery(&self) -> Delivery {
        if self.honours_key { Delivery::AtLeastOnce } else { Delivery::AtMostOnce }
    }
}

fn messages(world: &World, carrier: &Carrier, options: Options) -> (Gate, Scoped<Arc<Messages>>) {
    let gate = Gate::over(world.store.clone(), Arc::new(()));
    let channels = BTreeMap::from([("sms".to_owned(), Arc::new(carrier.clone()) as Arc<dyn Channel>)]);
    let messages = gate.messages(channels, options);
    (gate, messages)
}

fn workspace() -> WorkspaceName {
    WorkspaceName::default_workspace()
}

fn resolution(happened: bool) -> Resolution {
    Resolution { happened, by: "ann".into(), note: None }
}

fn post(text: &str) -> Post {
    let contact = Contact { phone: Some("+1".into()), ..Contact::default() };
    Post { contact, text: text.into(), ..Post::default() }
}

fn asked(key: &str, fingerprint: &str) -> Option<Asked> {
    Some(Asked::new(&workspace(), &["post", key], fingerprint.into()))
}

async fn posted(messages: &Scoped<Arc<Messages>>, text: &str) -> Posted {
    messages.post(None, post(text)).await.expect("the store is there").reply
}

async fn status(messages: &Scoped<Arc<Messages>>, id: Uuid) -> Status {
    let found = messages.find(id).await.expect("the store is there").expect("it was accepted");
    let message: Message = found.document;
    message.status
}

async fn the_same_message_is_sent_once(on: On) {
    let world = World::open_with_real_time(on).await;
    let carrier = Carrier::default();
    let (_, messages) = messages(&world, &carrier, Options::default());
    let (one, other) = tokio::join!(posted(&messages, "at nine"), posted(&messages, "at nine"));
    let third = posted(&messages, "at nine").await;
    assert_eq!([&one, &other, &third].into_iter().filter(|posted| !posted.is_duplicate).count(), 1);
    let id = third.message.expect("the original is written");
    assert_eq!((carrier.got(), third.status), (vec![id], Some(Status::Sent)));
    assert!(!posted(&messages, "at ten").await.is_duplicate);
    world.close().await;
}

async fn a_request_with_a_known_key_gets_the_first_answer_again(on: On) {
    let world = World::open_with_real_time(on).await;
    let carrier = Carrier::default();
    for keep_answers in [true, false] {
        let options = Options { keep_answers, ..Options::default() };
        let (_, messages) = messages(&world, &carrier, options);
        let key = format!("k-{keep_answers}");
        let first = messages.post(asked(&key, "a"), post(&key)).await.expect("the store is there");
        let Answered { reply, is_replay } = messages.post(asked(&key, "a"), post(&key)).await.expect("it is kept");
        assert!(is_replay && !first.is_replay);
        assert_eq!(reply, first.reply);
        let reused = messages.post(asked(&key, "b"), post("another")).await;
        assert!(matches!(reused, Err(Refused::KeyReused)), "{reused:?}");
    }
    assert_eq!(carrier.got().len(), 2);
    world.close().await;
}

async fn a_message_that_its_post_could_not_send_is_sent_by_a_worker(on: On) {
    let world = World::open_with_real_time(on).await;
    let busy = Failure::busy("later", Some(Duration::from_millis(200)));
    let carrier = Carrier { answers: Arc::new(Mutex::new(vec![Err(busy)])), honours_key: true, ..Carrier::default() };
    let options = Options { send_wait: Duration::from_secs(30), ..Options::default() };
    let (gate, messages) = messages(&world, &carrier, options);
    let sent = Arc::new(Mutex::new(None));
    let posts = async {
        *sent.lock().expect("no holder panics") = Some(posted(&messages, "at nine").await);
    };
    gate.worker().messages(messages.policy()).run(posts).await;
    let sent = sent.lock().expect("no holder panics").take().expect("it was answered");
    let id = sent.message.expect("it was accepted");
    assert_eq!((sent.status, carrier.got()), (Some(Status::Sent), vec![id, id]));
    world.close().await;
}

async fn a_message_that_may_have_been_sent_is_settled_by_a_person_and_released(on: On) {
    let world = World::open_with_real_time(on).await;
    let lost = Err(Failure::unknown("no answer"));
    let carrier = Carrier { answers: Arc::new(Mutex::new(vec![lost])), ..Carrier::default() };
    let (_, messages) = messages(&world, &carrier, Options::default());
    let first = posted(&messages, "at nine").await;
    let id = first.message.expect("it was accepted");
    assert_eq!(first.status, Some(Status::Unknown));
    assert!(posted(&messages, "at nine").await.is_duplicate, "it may have been sent");
    let settled = messages.resolve(&workspace(), id, &resolution(false)).await.expect("it is unknown");
    assert_eq!(settled.document.status, Status::Failed);
    let again = resolve(&*world.store, &workspace(), id, &resolution(true), true).await;
    assert!(matches!(again, Err(Refused::Wrong(_))), "{again:?}");
    let second = posted(&messages, "at nine").await;
    assert_eq!((second.is_duplicate, second.status), (false, Some(Status::Sent)));
    assert_eq!(carrier.got().len(), 2);
    world.close().await;
}

async fn a_post_that_is_dropped_is_sent_all_the_same(on: On) {
    let world = World::open_with_real_time(on).await;
    let carrier = Carrier::default();
    let (_, messages) = messages(&world, &carrier, Options::default());
    let dropped = tokio::time::timeout(Duration::from_millis(1), posted(&messages, "at nine")).await;
    let _ = dropped;
    while carrier.got().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let duplicate = posted(&messages, "at nine").await;
    let id = duplicate.message.expect("the original is written");
    while status(&messages, id).await != Status::Sent {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((duplicate.is_duplicate, carrier.got()), (true, vec![id]));
    world.close().await;
}
