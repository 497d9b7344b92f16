//! The rules for records, their names and lists, which are written beside claims.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use oncegate_core::{Answer, Command, State, Terms, Time, Token};
use uuid::Uuid;

use super::queue::job;
use super::{START, World, key, settle, terms, workspace};
use crate::{At, Change, Commit, Committed, Listing, Op, Place, Record, Swept, Usage, UsageFrom};

pub(super) fn record(number: u128, body: &str) -> Record {
    Record {
        workspace: workspace("default"),
        kind: "thing",
        id: Uuid::from_u128(number),
        version: 1,
        state: None,
        expires_at: None,
        body: Bytes::from(body.to_owned()),
    }
}

fn named(record: Record, names: &[&str]) -> Change {
    Change::Create { record, names: names.iter().map(|name| (*name).to_owned()).collect(), lists: vec![] }
}

fn at_name(name: &str) -> Place {
    Place { workspace: workspace("default"), kind: "thing", at: At::Name(name.into()) }
}

impl World {
    pub(super) async fn change(&self, changes: Vec<Change>) -> Committed {
        self.store.commit(Commit { ops: vec![], changes }).await.expect("the store is there")
    }

    pub(super) async fn find(&self, place: Place) -> Option<Record> {
        self.store.find(&[place]).await.expect("the store is there").value.remove(0)
    }
}

/// A second creation under the same id is a conflict. So is a replacement that is not the next version of a stored record.
pub async fn a_record_is_created_once_and_changed_only_from_its_last_version(world: World) {
    let first = record(1, "{}");
    assert!(world.change(vec![Change::create(first.clone())]).await.is_written());
    assert_eq!(world.find(first.place()).await, Some(first.clone()));
    assert_eq!(world.change(vec![Change::create(first.clone())]).await.conflict, Some(0), "its id is taken");
    let second = Record { version: 2, state: Some("sent".into()), ..record(1, r#"{"a":1}"#) };
    assert!(world.change(vec![Change::replace(second.clone())]).await.is_written());
    assert_eq!(world.change(vec![Change::replace(second.clone())]).await.conflict, Some(0), "that is its version now");
    let absent = Record { version: 2, ..record(2, "{}") };
    assert_eq!(world.change(vec![Change::replace(absent)]).await.conflict, Some(0), "there is none");
    assert_eq!(world.find(first.place()).await, Some(second));
    let elsewhere = Place { workspace: workspace("other"), ..first.place() };
    assert_eq!(world.find(elsewhere).await, None);
    assert_eq!(world.find(Place { kind: "other", ..first.place() }).await, None);
}

/// Neither a creation nor a replacement can take the name of another record. A refused change takes none of its names.
pub async fn a_name_is_one_records_alone(world: World) {
    assert!(world.change(vec![named(record(1, "1"), &["phone:1"])]).await.is_written());
    assert_eq!(world.change(vec![named(record(2, "2"), &["email:2", "phone:1"])]).await.conflict, Some(0));
    assert_eq!(world.find(at_name("email:2")).await, None, "nothing of a commit that did not stand");
    assert!(world.change(vec![named(record(3, "3"), &["email:3"])]).await.is_written());
    let more =
        |name: &str| Change::Replace { record: Record { version: 2, ..record(1, "1+") }, names: vec![name.into()] };
    assert_eq!(world.change(vec![more("email:3")]).await.conflict, Some(0), "another's");
    assert!(world.change(vec![more("email:1")]).await.is_written());
    for name in ["phone:1", "email:1"] {
        assert_eq!(world.find(at_name(name)).await.map(|found| found.body), Some(Bytes::from_static(b"1+")));
    }
}

/// A removal takes the record, its names and its lists, but only from the stored version. Its names are free afterwards.
pub async fn a_record_is_removed_whole_from_its_last_version_alone(world: World) {
    let listed = |list: &str| {
        let list = Some(list.to_owned());
        world.store.list(Listing {
            workspace: workspace("default"),
            kind: "thing",
            list,
            state: None,
            limit: 9,
            before: None,
        })
    };
    let (names, lists) = (vec!["one".to_owned(), "two".to_owned()], vec!["all".to_owned()]);
    let create = |number| Change::Create { record: record(number, "{}"), names: names.clone(), lists: lists.clone() };
    let remove = |record: Record| Change::Remove { record, names: names.clone(), lists: lists.clone() };
    assert!(world.change(vec![create(1)]).await.is_written());
    let second = Record { version: 2, ..record(1, "2") };
    assert_eq!(world.change(vec![remove(second.clone())]).await.conflict, Some(0), "not its version");
    assert!(world.change(vec![Change::replace(second.clone())]).await.is_written());
    assert_eq!(world.change(vec![remove(record(1, ""))]).await.conflict, Some(0), "its version before");
    assert_eq!(world.find(at_name("two")).await.as_ref(), Some(&second), "a removal that did not stand took nothing");
    assert_eq!(listed("all").await.expect("a page").records.len(), 1);
    assert!(world.change(vec![remove(second.clone())]).await.is_written());
    assert_eq!(world.change(vec![remove(second.clone())]).await.conflict, Some(0), "there is none any more");
    assert_eq!(world.find(second.place()).await, None);
    assert_eq!(world.find(at_name("one")).await, None);
    assert_eq!(listed("all").await.expect("a page").records, vec![]);
    assert!(world.change(vec![create(2)]).await.is_written(), "its names are free");
}

/// A lookup by a name that the store cannot store finds nothing or fails. Lookups that run at the same time still find their
/// records.
pub async fn who_looks_for_what_cannot_be_there_is_nobody_elses_trouble(world: World) {
    assert!(world.change(vec![named(record(1, "{}"), &["good"])]).await.is_written());
    // Some stores cannot store such a name. Only the lookup with that name fails, not the lookups that run at the same time.
    let places: Vec<Place> = (0..200).map(|i| at_name(if i % 4 == 0 { "\0" } else { "good" })).collect();
    let found = join_all(places.iter().map(|place| world.store.find(std::slice::from_ref(place)))).await;
    for (place, found) in places.iter().zip(found) {
        match &place.at {
            At::Name(name) if name == "good" => assert!(found.expect("it is there").value[0].is_some()),
            _ => assert!(found.is_err() || found.is_ok_and(|found| found.value[0].is_none())),
        }
    }
}

/// A change in conflict undoes the claims of its commit, and a claim of another owner undoes the changes.
pub async fn claims_and_changes_stand_or_fall_together(world: World) {
    let claim = |part: &str, message: &str| Op {
        key: key(part),
        command: Command::Claim(Terms { outcome: Some(Bytes::from(message.to_owned())), ..terms() }),
    };
    let commit = |ops: Vec<Op>, changes: Vec<Change>| world.store.commit(Commit { ops, changes });
    let changes = |number: u128| {
        vec![
            Change::create(record(number, "{}")),
            named(record(number + 100, "{}"), &["one"]),
            Change::Enqueue(job(number, START)),
        ]
    };
    let first = commit(vec![claim("a", "1"), claim("b", "1")], changes(1)).await.expect("answers");
    assert!(first.is_written());
    // A change that does not find what it expects undoes the claims of its commit.
    let second = commit(vec![claim("c", "2")], changes(2)).await.expect("answers");
    assert!(matches!(second.answers[..], [Answer::Won(_)]) && second.conflict == Some(1) && !second.is_written());
    assert_eq!(world.read(&key("c")).await, None);
    assert_eq!(world.find(record(2, "").place()).await, None);
    // A claim of another owner undoes the changes of its commit.
    let changes = vec![Change::create(record(3, "{}")), Change::Enqueue(job(3, START))];
    let third = commit(vec![claim("d", "3"), claim("a", "3")], changes).await.expect("answers");
    assert!(!third.is_written() && third.conflict.is_none());
    match &third.answers[1] {
        Answer::Duplicate(claim) => assert_eq!((claim.state, claim.outcome.as_deref()), (State::Done, Some(&b"1"[..]))),
        other => panic!("{other:?}"),
    }
    assert_eq!((world.read(&key("d")).await, world.find(record(3, "").place()).await), (None, None));
    assert_eq!(world.lease(10).await.0.len(), 1, "one job, of the one commit that stands");
}

/// A claim that brings its outcome is `done` at once. Its owner's token can retract it, another token cannot.
pub async fn a_claim_settled_as_it_is_made_can_be_taken_back_by_its_maker_alone(world: World) {
    let token = world.win_with(&key("a"), Terms { outcome: Some(Bytes::from_static(b"1")), ..terms() }).await;
    let claim = world.read(&key("a")).await.expect("is there");
    assert_eq!(
        (claim.state, claim.settled_at, claim.outcome),
        (State::Done, Some(START), Some(Bytes::from_static(b"1")))
    );
    let stale = Command::Retract { token: Token(token.0 - 1) };
    assert!(matches!(world.apply(&key("a"), stale).await, Answer::Refused(_)));
    assert!(matches!(world.apply(&key("a"), Command::Retract { token }).await, Answer::Applied(_)));
    assert_eq!(world.read(&key("a")).await, None);
    // A new claim replaces the record that the retracted claim left behind.
    world.win_with(&key("a"), Terms { outcome: Some(Bytes::from_static(b"2")), ..terms() }).await;
    assert_eq!(world.read(&key("a")).await.and_then(|claim| claim.outcome), Some(Bytes::from_static(b"2")));
}

/// Pages of records are complete and in order, with and without a list, a state or a cursor.
pub async fn lists_of_records_are_newest_first_filtered_and_paged(world: World) {
    for number in 1..=9 {
        let state = Some(if number % 2 == 0 { "sent" } else { "failed" }.to_owned());
        let lists = if number % 3 == 0 { vec!["lead:3".to_owned()] } else { vec![] };
        let record = Record { state, ..record(number, "{}") };
        assert!(world.change(vec![Change::Create { record, names: vec![], lists }]).await.is_written());
    }
    let other = Record { workspace: workspace("other"), ..record(20, "{}") };
    assert!(world.change(vec![Change::create(other)]).await.is_written());
    let list = async |list: Option<&str>, state: Option<&str>, limit: usize, before: Option<u128>| {
        let listing = Listing {
            workspace: workspace("default"),
            kind: "thing",
            list: list.map(str::to_owned),
            state: state.map(str::to_owned),
            limit,
            before: before.map(Uuid::from_u128),
        };
        let listed = world.store.list(listing).await.expect("the store is there");
        let ids: Vec<u128> = listed.records.iter().map(|record| record.id.as_u128()).collect();
        (ids, listed.next.map(|next| next.as_u128()))
    };
    assert_eq!(list(None, None, 4, None).await, (vec![9, 8, 7, 6], Some(6)));
    assert_eq!(list(None, None, 5, Some(6)).await, (vec![5, 4, 3, 2, 1], None));
    assert_eq!(list(None, Some("sent"), 9, None).await, (vec![8, 6, 4, 2], None));
    assert_eq!(list(Some("lead:3"), None, 2, None).await, (vec![9, 6], Some(6)));
    assert_eq!(list(Some("lead:3"), Some("failed"), 9, None).await, (vec![9, 3], None));
    assert!(
        world
            .change(vec![Change::replace(Record { version: 2, state: Some("sent".into()), ..record(9, "{}") })])
            .await
            .is_written()
    );
    assert_eq!(list(Some("lead:3"), Some("sent"), 9, None).await, (vec![9, 6], None));
    assert_eq!(list(None, Some("failed"), 1, None).await, (vec![7], Some(7)));
}

/// A page may end before it has found any record, but the pages together leave none out.
pub async fn what_is_rare_in_a_list_is_found_behind_all_the_rest(world: World) {
    let lists = || vec!["crowd".to_owned()];
    let rare = [1, 2, Listing::LOOKED_MAX as u128, Listing::LOOKED_MAX as u128 * 2 + 7];
    let numbers: Vec<u128> = (1..=Listing::LOOKED_MAX as u128 * 2 + 50).collect();
    for some in numbers.chunks(1_000) {
        let create = |number: &u128| {
            let state = Some(if rare.contains(number) { "rare" } else { "usual" }.to_owned());
            Change::Create { record: Record { state, ..record(*number, "{}") }, names: vec![], lists: lists() }
        };
        assert!(world.change(some.iter().map(create).collect()).await.is_written());
    }
    let (mut found, mut before, mut pages) = (vec![], None, 0);
    loop {
        let (list, state) = (lists().pop(), Some("rare".to_owned()));
        let listing = Listing { workspace: workspace("default"), kind: "thing", list, state, limit: 2, before };
        let listed = world.store.list(listing).await.expect("the store is there");
        found.extend(listed.records.iter().map(|record| record.id.as_u128()));
        pages += 1;
        before = listed.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(found, rare.iter().rev().copied().collect::<Vec<_>>());
    assert!(pages <= 5, "{pages}");
}

/// A count equals the length of the listing with the same list, state, limit and cursor.
pub async fn records_are_counted_as_a_listing_finds_them_and_no_further_than_its_limit(world: World) {
    for number in 1..=9 {
        let state = Some(if number % 2 == 0 { "sent" } else { "failed" }.to_owned());
        let lists = if number % 3 == 0 { vec!["lead:3".to_owned()] } else { vec![] };
        let record = Record { state, ..record(number, "{}") };
        assert!(world.change(vec![Change::Create { record, names: vec![], lists }]).await.is_written());
    }
    for other in [
        Record { workspace: workspace("other"), ..record(20, "{}") },
        Record { kind: "other", state: Some("sent".into()), ..record(21, "{}") },
    ] {
        assert!(world.change(vec![Change::create(other)]).await.is_written());
    }
    let count = async |list: Option<&str>, state: Option<&str>, limit: usize, before: Option<u128>| {
        let (list, state) = (list.map(str::to_owned), state.map(str::to_owned));
        let before = before.map(Uuid::from_u128);
        let listing = Listing { workspace: workspace("default"), kind: "thing", list, state, limit, before };
        world.store.count(listing).await.expect("the store is there")
    };
    assert_eq!(count(None, None, 100, None).await, 9);
    assert_eq!(count(None, None, 9, None).await, 9);
    assert_eq!(count(None, None, 8, None).await, 8, "no further than that");
    assert_eq!(count(None, None, 0, None).await, 0);
    assert_eq!(count(None, Some("sent"), 100, None).await, 4);
    assert_eq!(count(None, Some("sent"), 3, None).await, 3);
    assert_eq!(count(None, Some("sent"), 100, Some(6)).await, 2, "those older than that");
    assert_eq!(count(None, Some("absent"), 100, None).await, 0);
    assert_eq!(count(Some("lead:3"), None, 100, None).await, 3);
    assert_eq!(count(Some("lead:3"), Some("failed"), 100, None).await, 2);
    assert_eq!(count(Some("lead:4"), None, 100, None).await, 0);
}

/// The parts of a measurement add up to the claims, records and bytes of each workspace. Bytes are counted, not letters.
pub async fn what_each_workspace_has_stored_is_measured_in_parts(world: World) {
    let elsewhere = Record { workspace: workspace("other"), ..record(1, r#"{"a":1}"#) };
    assert!(world.change(vec![Change::create(record(1, "{}")), Change::create(elsewhere)]).await.is_written());
    let token = world.win(&key("k")).await;
    assert!(matches!(world.apply(&key("k"), settle(token, "12345")).await, Answer::Applied(_)));
    let token = world.win(&key("of more bytes than letters")).await;
    let letters = settle(token, "\"äöü\"");
    assert!(matches!(world.apply(&key("of more bytes than letters"), letters).await, Answer::Applied(_)));

    let (mut usage, mut from) = (BTreeMap::new(), Some(UsageFrom::default()));
    while let Some(part) = from {
        let part = world.store.usage(part).await.expect("the store is there");
        for Usage { workspace, claims, bytes } in part.usage {
            let sum = usage.entry(workspace).or_insert((0, 0));
            *sum = (sum.0 + claims, sum.1 + bytes);
        }
        from = part.next;
    }
    let expected = [(workspace("default"), (3, 15)), (workspace("other"), (1, 7))];
    assert_eq!(usage.into_iter().collect::<Vec<_>>(), expected);
}

/// A record can be read until a sweep at or after its end. The sweep frees its names and lists, and leaves all other records.
pub async fn a_record_past_its_end_is_swept_with_its_names_and_lists_and_others_are_not(world: World) {
    const MILLI: Duration = Duration::from_millis(1);
    let end = START + Duration::from_secs(60);
    let listed = async |list: &str| {
        let list = Some(list.to_owned());
        let listing =
            Listing { workspace: workspace("default"), kind: "thing", list, state: None, limit: 9, before: None };
        world.store.list(listing).await.expect("a page").records
    };
    let create = |record: Record, names: &[&str]| Change::Create {
        record,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        lists: vec!["all".to_owned(), "some".to_owned()],
    };
    let ending = |number, end| Record { expires_at: Some(end), ..record(number, "{}") };
    // The same id in another workspace or of another kind is another record. These two have no end.
    let elsewhere = Record { workspace: workspace("other"), ..record(1, "{}") };
    let of_another_kind = Record { kind: "other", ..record(1, "{}") };
    for record in [&elsewhere, &of_another_kind] {
        assert!(world.change(vec![create(record.clone(), &["first"])]).await.is_written());
    }
    assert!(world.change(vec![create(ending(1, end), &["first", "one"])]).await.is_written());
    assert!(world.change(vec![create(ending(2, end + MILLI), &["second"])]).await.is_written());
    assert!(world.change(vec![create(record(3, "{}"), &["third"])]).await.is_written());
    let more = Record { version: 2, ..ending(1, end) };
    let renamed = Change::Replace { record: more.clone(), names: vec!["un".into()] };
    assert!(world.change(vec![renamed]).await.is_written());
    assert_eq!(world.find(more.place()).await, Some(more.clone()), "its end is kept");

    let swept = async || world.store.sweep(100).await.expect("sweeps").records;
    // A sweep leaves a record whose name is still locked by a transaction that was refused just now.
    let swept_at_last = async || {
        for _ in 0..100 {
            match swept().await {
                0 => tokio::time::sleep(Duration::from_millis(10)).await,
                records => return records,
            }
        }
        0
    };
    world.clock.set(START + Duration::from_millis(59_999));
    assert_eq!(swept().await, 0);
    assert_eq!(listed("all").await, [record(3, "{}"), ending(2, end + MILLI), more.clone()]);
    world.clock.set(end);
    assert_eq!(world.find(at_name("un")).await, Some(more.clone()), "until it is swept it is there");
    assert_eq!(world.change(vec![named(record(4, "{}"), &["one"])]).await.conflict, Some(0));
    assert_eq!(swept_at_last().await, 1);
    assert_eq!(world.find(more.place()).await, None);
    for name in ["first", "one", "un"] {
        assert_eq!(world.find(at_name(name)).await, None);
    }
    assert_eq!((listed("all").await.len(), listed("some").await.len()), (2, 2));
    assert!(world.change(vec![create(record(1, "anew"), &["first", "one", "un"])]).await.is_written(), "all is free");
    assert_eq!(listed("some").await.len(), 3);
    world.clock.set(end + MILLI);
    assert_eq!(swept_at_last().await, 1);
    assert_eq!(world.find(at_name("second")).await, None);
    world.clock.set(Time::NEVER);
    assert_eq!(swept().await, 0, "who has no end stays");
    for record in [&elsewhere, &of_another_kind] {
        let by_name = Place { at: At::Name("first".into()), ..record.place() };
        assert_eq!(world.find(by_name).await.as_ref(), Some(record));
    }
    assert_eq!(world.find(at_name("third")).await, Some(record(3, "{}")));
}

/// A replacement may move a record's end, set one or remove it. The sweep uses the end of the stored version.
pub async fn an_end_may_be_moved_set_and_taken_back(world: World) {
    let second = Duration::from_secs(1);
    let names = |number: u128| vec![format!("name {number}")];
    let ends = [Some(START + second), Some(START + second), None, None];
    for (number, expires_at) in (1..).zip(ends) {
        let record = Record { expires_at, ..record(number, "{}") };
        let create = Change::Create { record, names: names(number), lists: vec!["all".into()] };
        assert!(world.change(vec![create]).await.is_written());
    }
    let moved = [(1, Some(START + second * 3)), (2, None), (3, Some(START + second * 2)), (4, Some(Time::NEVER))];
    for (number, expires_at) in moved {
        let next = Record { version: 2, expires_at, ..record(number, "{}") };
        assert!(world.change(vec![Change::replace(next.clone())]).await.is_written());
        assert_eq!(world.find(next.place()).await, Some(next));
    }
    let left = async || {
        let list = Some("all".to_owned());
        let all = Listing { workspace: workspace("default"), kind: "thing", list, state: None, limit: 9, before: None };
        let records = world.store.list(all).await.expect("a page").records;
        records.iter().map(|record| record.id.as_u128()).collect::<Vec<_>>()
    };
    for (seconds, are_left) in [(1, vec![4, 3, 2, 1]), (2, vec![4, 2, 1]), (3, vec![4, 2])] {
        world.clock.set(START + second * seconds);
        world.store.sweep(100).await.expect("sweeps");
        assert_eq!(left().await, are_left, "after {seconds} s");
    }
    for number in [1, 3] {
        let name = names(number);
        assert!(world.change(vec![named(record(number + 10, "{}"), &[&name[0]])]).await.is_written(), "{name:?}");
    }
}

/// A sweep removes at most `limit` records. Concurrent sweeps together count each record once.
pub async fn a_sweep_of_records_is_bounded_and_none_is_swept_twice(world: World) {
    for number in 0..30 {
        let record = Record { expires_at: Some(START), ..record(number, "{}") };
        let create = Change::Create { record, names: vec![format!("{number}")], lists: vec!["all".into()] };
        assert!(world.change(vec![create]).await.is_written());
    }
    let swept = world.store.sweep(7).await.expect("sweeps");
    assert_eq!(swept, Swept { claims: 0, records: 7 });
    let sweeps = join_all((0..8).map(|_| world.store.sweep(100))).await;
    assert_eq!(sweeps.into_iter().map(|swept| swept.expect("sweeps").records).sum::<usize>(), 23);
}

/// Either the sweep comes first, and the change finds nothing; or the change moves the end first, and the record stays.
pub async fn a_sweep_that_meets_a_moving_end_removes_all_of_a_record_or_nothing(world: World) {
    for round in 0..50_u128 {
        let (number, later) = (round, START + Duration::from_secs(3600));
        let ending = Record { expires_at: Some(START), ..record(number, "{}") };
        let create = |record: Record| Change::Create {
            record,
            names: vec![format!("name {round}")],
            lists: vec![format!("list {round}")],
        };
        assert!(world.change(vec![create(ending.clone())]).await.is_written());
        // The change adds one name that the record has and one that is new. Another caller looks that name up at the same time.
        let names = vec![format!("name {round}"), format!("more {round}")];
        let moved = Record { version: 2, expires_at: Some(later), ..ending.clone() };
        let moving = world.change(vec![Change::Replace { record: moved.clone(), names }]);
        let other = world.change(vec![named(record(1000 + round, "{}"), &[&format!("name {round}")])]);
        let (moving, other, ..) =
            futures::join!(moving, other, world.store.sweep(10), world.store.sweep(10), world.store.sweep(10));
        let found = world.find(ending.place()).await;
        if moving.is_written() {
            assert_eq!(found.as_ref(), Some(&moved), "round {round}");
            assert!(!other.is_written());
            for name in ["name", "more"] {
                assert_eq!(world.find(at_name(&format!("{name} {round}"))).await.as_ref(), Some(&moved));
            }
        } else {
            while world.store.sweep(10).await.expect("sweeps").records > 0 {}
            assert_eq!(world.find(ending.place()).await, None, "round {round}");
            let anew = named(record(2000 + round, "{}"), &[&format!("more {round}")]);
            assert!(world.change(vec![anew]).await.is_written(), "nothing of it is left");
            let name = world.find(at_name(&format!("name {round}"))).await;
            assert_eq!(name.map(|found| found.id.as_u128()), other.is_written().then_some(1000 + round));
        }
    }
}

/// Of concurrent commits that create records with the same name, one is written, with its claim and its job.
pub async fn of_many_who_create_the_same_thing_at_once_one_does(world: World) {
    for round in 0..20_u128 {
        let create = async |caller: u128| {
            let number = round * 100 + caller;
            let op = Op { key: key(&format!("{round}-{caller}")), command: Command::Claim(terms()) };
            let changes =
                vec![named(record(number, "{}"), &[&format!("round {round}")]), Change::Enqueue(job(number, START))];
            world.store.commit(Commit { ops: vec![op], changes }).await.expect("answers").is_written()
        };
        let written = join_all((0..16).map(create)).await;
        assert_eq!(written.into_iter().filter(|written| *written).count(), 1);
    }
    assert_eq!(world.lease(100).await.0.len(), 20);
}

/// Callers count up one record at the same time. The sum is exact, and each commit's own claim and record exist once.
pub async fn of_concurrent_changes_to_one_record_none_is_lost_and_none_counted_twice(world: World) {
    const CALLERS: u128 = 16;
    const TURNS: u128 = 10;
    assert!(world.change(vec![Change::create(record(1, "0"))]).await.is_written());
    let count_up = |caller: u128, store: std::sync::Arc<dyn crate::MainStore>| async move {
        for turn in 0..TURNS {
            let number = 1000 + caller * 100 + turn;
            // Beside the shared record, each commit creates a claim and a record of its own, which exist once if the commit is written.
            let op = Op { key: key(&format!("{number}")), command: Command::Claim(terms()) };
            loop {
                let found =
                    store.find(&[record(1, "").place()]).await.expect("answers").value.remove(0).expect("is there");
                let sum: u128 = std::str::from_utf8(&found.body).expect("text").parse().expect("a number");
                let next = Record { version: found.version + 1, body: Bytes::from((sum + 1).to_string()), ..found };
                let changes = vec![Change::replace(next), Change::create(record(number, "{}"))];
                let committed = store.commit(Commit { ops: vec![op.clone()], changes }).await.expect("answers");
                if committed.is_written() {
                    break;
                }
                assert_eq!(committed.conflict, Some(0), "{committed:?}");
            }
        }
    };
    let callers: Vec<_> = (0..CALLERS).map(|caller| tokio::spawn(count_up(caller, world.store.clone()))).collect();
    join_all(callers).await.into_iter().for_each(|caller| caller.expect("does not panic"));
    let found = world.find(record(1, "").place()).await.expect("is there");
    assert_eq!(found.body, Bytes::from((CALLERS * TURNS).to_string()));
    let all =
        Listing { workspace: workspace("default"), kind: "thing", list: None, state: None, limit: 500, before: None };
    assert_eq!(world.store.list(all).await.expect("answers").records.len() as u128, CALLERS * TURNS + 1);
}
