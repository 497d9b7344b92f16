//! The sequential rules.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{
    Answer, ClaimId, ClaimKey, Command, GuardName, Lost, Refusal, State, Terms, Time, Token, Verdict,
    limits::{OUTCOME_BYTES_MAX, PAGE_MAX},
};

use super::{LEASE, START, WINDOW, World, key, key_in, settle, terms, workspace};
use crate::{Commit, DuplicateCount, Op, Query, StoreError, Waiters};

const MS: Duration = Duration::from_millis(1);

/// A claim can be read as it was made, with a bounded window or one that never ends.
pub async fn a_claim_keeps_every_field(world: World) {
    let key = key("k");
    let brought = Terms {
        window: WINDOW,
        lease: LEASE,
        lost: Lost::Hold,
        fingerprint: Some("sha256:ab".into()),
        attributes: Some(r#"{"from":"curl"}"#.into()),
        parts: Some(r#"["k",null]"#.into()),
        outcome: None,
        replaces: None,
    };
    let token = world.win_with(&key, brought.clone()).await;
    let claim = world.read(&key).await.expect("just made");
    assert_eq!(claim.key, key);
    assert_eq!((claim.state, claim.token, claim.attempt, claim.version), (State::InFlight, token, 1, 1));
    assert_eq!((claim.created_at, claim.lease_until, claim.expires_at), (START, START + LEASE, START + WINDOW));
    assert_eq!((claim.lost, claim.lease), (Lost::Hold, LEASE));
    assert_eq!((claim.settled_at, &claim.outcome, claim.duplicates, claim.last_duplicate_at), (None, &None, 0, None));
    assert_eq!(
        (claim.fingerprint, claim.attributes, claim.parts),
        (brought.fingerprint, brought.attributes, brought.parts)
    );

    let for_good = super::key("for good");
    world.win_with(&for_good, Terms { window: Duration::MAX, ..terms() }).await;
    assert_eq!(world.read(&for_good).await.expect("just made").expires_at, Time::NEVER);
}

/// A second caller meets the claim in flight. After the settle it gets the state and the outcome.
pub async fn the_first_wins_the_second_meets_it_and_reads_its_outcome(world: World) {
    let key = key("k");
    let token = world.win(&key).await;
    assert!(matches!(world.claim(&key).await, Answer::InFlight(claim) if claim.token == token));
    world.clock.advance(MS);
    assert!(matches!(world.apply(&key, settle(token, "42")).await, Answer::Applied(_)));
    match world.claim(&key).await {
        Answer::Duplicate(claim) => {
            assert_eq!((claim.state, claim.outcome.clone()), (State::Done, Some(Bytes::from("42"))));
            assert_eq!(claim.settled_at, Some(START + MS));
        }
        other => panic!("{other:?}"),
    }
    let failed = super::key("failed");
    let token = world.win(&failed).await;
    world.apply(&failed, Command::Settle { token, verdict: Verdict::Failed, outcome: None }).await;
    assert!(matches!(world.claim(&failed).await, Answer::Duplicate(claim) if claim.state == State::Failed));
}

/// A duplicate meets the claim in the last millisecond of the window. At its end the next caller becomes the owner.
pub async fn a_window_ends_at_its_end_to_the_millisecond(world: World) {
    let key = key("k");
    let token = world.win(&key).await;
    world.apply(&key, settle(token, "1")).await;
    world.clock.set(START + (WINDOW - MS));
    assert!(matches!(world.claim(&key).await, Answer::Duplicate(_)));
    world.clock.set(START + WINDOW);
    assert_eq!(world.read(&key).await, None, "expired is absent, swept or not");
    assert_eq!(world.apply(&key, settle(token, "1")).await, Answer::Refused(Refusal::Missing));
    let next = world.win(&key).await;
    assert!(next > token);
    world.clock.set(START + WINDOW + MS);
    assert!(matches!(world.claim(&key).await, Answer::InFlight(claim) if claim.token == next));
}

/// A renewal extends the lease. At the end of the lease the owner is refused, and the next caller takes over.
pub async fn a_lease_ends_at_its_end_to_the_millisecond(world: World) {
    let key = key("k");
    let first = world.win(&key).await;
    world.clock.set(START + (LEASE - MS));
    assert!(matches!(world.claim(&key).await, Answer::InFlight(_)));
    assert!(matches!(world.apply(&key, Command::Renew { token: first, lease: None }).await, Answer::Applied(_)));
    let renewed_end = START + (LEASE - MS) + LEASE;
    world.clock.set(START + (LEASE - MS) + (LEASE - MS));
    assert!(matches!(world.claim(&key).await, Answer::InFlight(_)));
    world.clock.set(renewed_end);
    assert_eq!(
        world.apply(&key, settle(first, "late")).await,
        Answer::Refused(Refusal::LeaseEnded { at: renewed_end })
    );
    let second = world.win(&key).await;
    assert!(second > first);
    assert_eq!(world.read(&key).await.expect("taken over").attempt, 2);
    world.clock.set(renewed_end + MS);
    assert!(matches!(world.claim(&key).await, Answer::InFlight(claim) if claim.token == second));
}

/// Each owner of a key has a larger token than the owners before, although their claims are swept and the clock steps back.
pub async fn tokens_keep_growing_across_expiry_sweep_and_a_clock_stepping_back(world: World) {
    let key = key("k");
    let mut last = Token(0);
    for step_back in [0, 1, 3600, 7200] {
        let token = world.win(&key).await;
        assert!(token > last);
        last = token;
        world.apply(&key, Command::Release { token }).await;
        while world.store.sweep(100).await.expect("sweeps").claims > 0 {}
        world.clock.set(Time::from_micros(START.micros() - step_back * 1_000_000));
    }
}

/// After a take-over, the earlier owner's renew, settle and release are refused, and change nothing.
pub async fn a_stale_owner_is_fenced_in_every_verb(world: World) {
    let key = key("k");
    let stale = world.win(&key).await;
    world.clock.advance(LEASE);
    let current = world.win(&key).await;
    let before = world.read(&key).await;
    let verbs = [
        Command::Renew { token: stale, lease: None },
        settle(stale, "late"),
        Command::Settle { token: stale, verdict: Verdict::Failed, outcome: None },
        Command::Release { token: stale },
    ];
    for verb in verbs {
        assert_eq!(world.apply(&key, verb).await, Answer::Refused(Refusal::TokenOutdated { current }));
        assert_eq!(world.read(&key).await, before);
    }
    let forged = Token(current.0 + 1);
    assert_eq!(world.apply(&key, settle(forged, "x")).await, Answer::Refused(Refusal::TokenUnknown { current }));
    let nobody = super::key("nobody");
    assert_eq!(world.apply(&nobody, settle(current, "x")).await, Answer::Refused(Refusal::Missing));
}

/// A repeated settle with the same outcome succeeds. Another outcome, a release and a renewal are refused.
pub async fn settling_twice_the_same_is_a_success_and_otherwise_refused(world: World) {
    let key = key("k");
    let token = world.win(&key).await;
    world.apply(&key, settle(token, "1")).await;
    assert!(matches!(world.apply(&key, settle(token, "1")).await, Answer::Already(_)));
    let otherwise = Answer::Refused(Refusal::SettledOtherwise { state: State::Done });
    assert_eq!(world.apply(&key, settle(token, "2")).await, otherwise);
    let settled = Answer::Refused(Refusal::Settled { state: State::Done });
    assert_eq!(world.apply(&key, Command::Release { token }).await, settled);
    assert_eq!(world.apply(&key, Command::Renew { token, lease: None }).await, settled);
    assert_eq!(world.read(&key).await.expect("stands").outcome, Some(Bytes::from("1")));
}

/// With `Lost::Hold` no caller takes over after the lease. A person resolves the claim, and a second resolve is refused.
pub async fn a_held_claim_is_unknown_after_its_lease_and_is_resolved_once(world: World) {
    let key = key("k");
    let unknown = Query {
        workspace: workspace("default"),
        guard: None,
        state: Some(State::Unknown),
        limit: PAGE_MAX,
        after: None,
    };
    world.win_with(&key, Terms { lost: Lost::Hold, ..terms() }).await;
    assert!(world.store.scan(unknown.clone()).await.expect("scans").claims.is_empty());
    world.clock.advance(LEASE);
    assert!(matches!(world.claim(&key).await, Answer::Held(_)));
    assert_eq!(world.store.scan(unknown.clone()).await.expect("scans").claims.len(), 1);
    let resolve = |done| Command::Resolve { done, outcome: Some("by hand".into()) };
    assert!(matches!(world.apply(&key, resolve(true)).await, Answer::Applied(_)));
    assert_eq!(world.apply(&key, resolve(false)).await, Answer::Refused(Refusal::NotUnknown { state: State::Done }));
    assert!(matches!(world.claim(&key).await, Answer::Duplicate(claim) if claim.outcome == Some("by hand".into())));
    assert!(world.store.scan(unknown).await.expect("scans").claims.is_empty());
}

/// An owner that abandons its claim counts as lost at once, long before its lease ends.
pub async fn an_abandoned_claim_is_taken_over_or_held_at_once(world: World) {
    let (taken_over, held) = (key("taken over"), key("held"));
    let first = world.win(&taken_over).await;
    let abandon = |token| Command::Abandon { token };
    assert!(matches!(world.apply(&taken_over, abandon(first)).await, Answer::Applied(_)));
    assert!(matches!(
        world.apply(&taken_over, settle(first, "late")).await,
        Answer::Refused(Refusal::LeaseEnded { .. })
    ));
    match world.claim(&taken_over).await {
        Answer::Won(second) => assert!(second.attempt == 2 && second.token > first),
        other => panic!("{other:?}"),
    }
    assert!(matches!(world.apply(&taken_over, abandon(first)).await, Answer::Refused(Refusal::TokenOutdated { .. })));

    let token = world.win_with(&held, Terms { lost: Lost::Hold, ..terms() }).await;
    assert!(matches!(world.apply(&held, abandon(token)).await, Answer::Applied(_)));
    assert!(matches!(world.claim(&held).await, Answer::Held(_)));
}

/// After a release or a forget, the next caller becomes the owner.
pub async fn releasing_and_forgetting_make_room(world: World) {
    let key = key("k");
    let first = world.win(&key).await;
    assert!(matches!(world.apply(&key, Command::Release { token: first }).await, Answer::Applied(_)));
    assert_eq!(world.read(&key).await, None);
    assert_eq!(world.apply(&key, Command::Release { token: first }).await, Answer::Refused(Refusal::Missing));
    let second = world.win(&key).await;
    assert!(second > first);
    world.apply(&key, settle(second, "1")).await;
    assert!(matches!(world.apply(&key, Command::Forget).await, Answer::Applied(_)));
    assert_eq!(world.apply(&key, Command::Forget).await, Answer::Refused(Refusal::Missing));
    assert!(world.win(&key).await > second);
}

/// A caller with another fingerprint is told so while the claim is live. After the window it becomes the owner.
pub async fn a_fingerprint_that_differs_is_a_mismatch(world: World) {
    let key = key("k");
    let made_from = |fingerprint: &str| Terms { fingerprint: Some(fingerprint.into()), ..terms() };
    world.win_with(&key, made_from("a")).await;
    assert!(matches!(world.apply(&key, Command::Claim(made_from("b"))).await, Answer::Mismatch(_)));
    assert!(matches!(world.apply(&key, Command::Claim(made_from("a"))).await, Answer::InFlight(_)));
    world.clock.advance(WINDOW);
    assert!(matches!(world.apply(&key, Command::Claim(made_from("b"))).await, Answer::Won(_)));
}

/// The same key in two workspaces names two claims. A list shows only the claims of its workspace.
pub async fn workspaces_do_not_see_each_other(world: World) {
    let (ours, theirs) = (key_in("ours", "k"), key_in("theirs", "k"));
    assert_eq!(ours.id, theirs.id);
    let token = world.win(&ours).await;
    world.win(&theirs).await;
    world.apply(&ours, settle(token, "1")).await;
    assert!(matches!(world.claim(&theirs).await, Answer::InFlight(_)));
    let query = Query { workspace: workspace("third"), guard: None, state: None, limit: PAGE_MAX, after: None };
    assert!(world.store.scan(query).await.expect("scans").claims.is_empty());
}

/// A key with the id of a claim and the name of another guard finds nothing and changes nothing.
pub async fn a_claim_is_not_there_under_another_guards_name(world: World) {
    let ours = key("k");
    let token = world.win(&ours).await;
    let theirs = ClaimKey { guard: GuardName::new("other").expect("a good name"), ..ours.clone() };
    assert_eq!(world.read(&theirs).await, None);
    assert_eq!(world.apply(&theirs, settle(token, "x")).await, Answer::Refused(Refusal::Missing));
    assert_eq!(world.apply(&theirs, Command::Forget).await, Answer::Refused(Refusal::Missing));
    assert_eq!(world.read(&ours).await.expect("as it was").state, State::InFlight);
}

/// If one command of a commit is not accepted, none of its claims are written.
pub async fn a_commit_is_all_or_nothing(world: World) {
    let claim = |part: &str| Op { key: key(part), command: Command::Claim(terms()) };
    let both = world.commit(vec![claim("a"), claim("b")]).await;
    assert!(both.is_written());
    let half = world.commit(vec![claim("c"), claim("a"), claim("d")]).await;
    assert!(!half.is_written());
    assert!(matches!(half.answers[1], Answer::InFlight(_)));
    assert_eq!((world.read(&key("c")).await, world.read(&key("d")).await), (None, None));

    let token = world.read(&key("a")).await.expect("won above").token;
    let op = |part: &str, command| Op { key: key(part), command };
    let settles_and_claims = world.commit(vec![op("a", settle(token, "1")), claim("c")]).await;
    assert!(settles_and_claims.is_written());
    assert_eq!(world.read(&key("a")).await.expect("stands").state, State::Done);
    assert_eq!(world.read(&key("c")).await.expect("won").state, State::InFlight);
}

/// The store refuses the commit as a whole, and works on.
pub async fn a_commit_that_names_a_key_twice_is_refused(world: World) {
    let token = world.win(&key("k")).await;
    let op = |command| Op { key: key("k"), command };
    let twice =
        Commit { ops: vec![op(Command::Renew { token, lease: None }), op(settle(token, "1"))], changes: vec![] };
    assert!(matches!(world.store.commit(twice).await, Err(StoreError::Refused(_))));
    assert!(matches!(world.apply(&key("k"), settle(token, "1")).await, Answer::Applied(_)), "the store goes on");
}

/// Many operations run at once, so that they share a commit. One of them is refused.
pub async fn one_bad_operation_fails_alone(world: World) {
    let too_large = Bytes::from(vec![b'x'; OUTCOME_BYTES_MAX + 1]);
    let token = world.win(&key("bad")).await;
    let bad = Commit::from(Op { key: key("bad"), command: settle(token, too_large) });
    let good = (0..50).map(|i| {
        let store = world.store.clone();
        let op = Op { key: key(&format!("good {i}")), command: Command::Claim(terms()) };
        tokio::spawn(async move { store.commit(op.into()).await })
    });
    let good: Vec<_> = good.collect();
    assert!(matches!(world.store.commit(bad).await, Err(StoreError::Refused(_))));
    for commit in good {
        assert!(commit.await.expect("does not panic").expect("is not touched by the bad one").is_written());
    }
    assert_eq!(world.read(&key("bad")).await.expect("as it was").state, State::InFlight);
}

/// Of many commits in one call, a refused one does not affect the others. The answers are in order.
pub async fn many_commits_stand_each_by_itself(world: World) {
    let token = world.win(&key("bad")).await;
    let too_large = Bytes::from(vec![b'x'; OUTCOME_BYTES_MAX + 1]);
    let claim = |part: &str| Commit::from(Op { key: key(part), command: Command::Claim(terms()) });
    let bad = Commit::from(Op { key: key("bad"), command: settle(token, too_large) });
    let all = world.store.commit_all(vec![claim("first"), bad, claim("last")]).await;
    assert!(matches!(all[1], Err(StoreError::Refused(_))), "{:?}", all[1]);
    for (place, part) in [(0, "first"), (2, "last")] {
        let committed = all[place].clone().expect("is not touched by the bad one");
        assert!(matches!(committed.only(), Answer::Won(claim) if claim.key == key(part)), "answered in order");
        assert!(world.read(&key(part)).await.is_some());
    }
}

/// The largest permitted outcome may contain any bytes.
pub async fn an_outcome_of_the_largest_size_comes_back_byte_for_byte(world: World) {
    let key = key("k");
    let outcome: Bytes = (0..OUTCOME_BYTES_MAX).map(|i| (i * 31 % 256) as u8).collect();
    let token = world.win(&key).await;
    assert!(matches!(world.apply(&key, settle(token, outcome.clone())).await, Answer::Applied(_)));
    assert_eq!(world.read(&key).await.expect("stands").outcome, Some(outcome));
}

/// The pages together list each live claim once, also if several claims have the same token. Pages leave out outcomes.
pub async fn lists_are_newest_first_filtered_and_paged_without_gaps(world: World) {
    let mut made = vec![];
    for i in 0..25 {
        // Every fifth claim shares its time, and so its token, with the claim before it.
        if i % 5 != 0 {
            world.clock.advance(MS);
        }
        let token = world.win(&key(&i.to_string())).await;
        if i % 2 == 0 {
            world.apply(&key(&i.to_string()), settle(token, "1")).await;
        }
        made.push((token, key(&i.to_string()).id));
    }
    made.sort_unstable_by(|a, b| b.cmp(a));
    let all = Query { workspace: workspace("default"), guard: None, state: None, limit: 4, after: None };
    assert_eq!(ids_of_all_pages(&world, all.clone()).await, made.iter().map(|(_, id)| *id).collect::<Vec<_>>());
    let done = ids_of_all_pages(&world, Query { state: Some(State::Done), ..all.clone() }).await;
    assert_eq!(done.len(), 13);
    let other_guard = Some(GuardName::new("other").expect("a good name"));
    assert!(ids_of_all_pages(&world, Query { guard: other_guard, ..all.clone() }).await.is_empty());
    world.clock.advance(WINDOW);
    assert!(ids_of_all_pages(&world, all).await.is_empty());
}

async fn ids_of_all_pages(world: &World, mut query: Query) -> Vec<ClaimId> {
    let mut ids = vec![];
    loop {
        let page = world.store.scan(query.clone()).await.expect("scans");
        assert!(page.claims.len() <= query.limit);
        assert!(page.claims.iter().all(|claim| claim.outcome.is_none()), "a page is bounded in bytes too");
        ids.extend(page.claims.iter().map(|claim| claim.key.id));
        match page.next {
            Some(cursor) => query.after = Some(cursor),
            None => return ids,
        }
    }
}

/// A sweep removes at most `limit` claims, and only claims whose window has ended.
pub async fn sweeping_removes_the_expired_and_nothing_else(world: World) {
    for i in 0..30 {
        world.win(&key(&format!("old {i}"))).await;
    }
    world.clock.advance(WINDOW - MS);
    for i in 0..5 {
        world.win(&key(&format!("new {i}"))).await;
    }
    assert_eq!(world.store.sweep(1000).await.expect("sweeps").claims, 0);
    world.clock.advance(MS);
    assert_eq!(world.store.sweep(20).await.expect("sweeps").claims, 20, "a sweep is bounded");
    assert_eq!(world.store.sweep(20).await.expect("sweeps").claims, 10);
    assert_eq!(world.store.sweep(20).await.expect("sweeps").claims, 0);
    for i in 0..5 {
        assert!(world.read(&key(&format!("new {i}"))).await.is_some());
    }
}

/// Duplicates that met an earlier owner are not added. A count does not outdate the owner's token.
pub async fn duplicates_are_counted_on_the_owner_that_was_met(world: World) {
    let key = key("k");
    let token = world.win(&key).await;
    let count = |token, count| DuplicateCount { key: key.clone(), token, count, last_at: START + MS };
    world.store.count_duplicates(vec![count(token, 3)]).await.expect("counts");
    world.store.count_duplicates(vec![count(token, 2), count(Token(token.0 - 1), 9)]).await.expect("counts");
    let claim = world.read(&key).await.expect("stands");
    assert_eq!((claim.duplicates, claim.last_duplicate_at), (5, Some(START + MS)));
    assert!(matches!(world.apply(&key, settle(token, "1")).await, Answer::Applied(_)), "counting does not fence");
    assert_eq!(world.read(&key).await.expect("stands").duplicates, 5);
}

/// A caller that registers and then reads cannot miss the settle.
pub async fn a_waiter_registered_before_the_settle_is_woken(world: World) {
    let key = key("k");
    let waiters = Arc::new(Waiters::default());
    world.store.attach(waiters.clone());
    let token = world.win(&key).await;
    let mut waiter = waiters.register(&key.workspace, key.id);
    world.store.expect_wake(&key).await.expect("the store is there");
    world.apply(&key, settle(token, "1")).await;
    tokio::time::timeout(Duration::from_secs(10), waiter.woken()).await.expect("woken by the settle");
}

/// A caller replaces the live claim whose token it names. A caller that names an older token meets the claim as usual.
pub async fn a_claim_that_is_replaced_has_the_next_token_and_a_window_of_its_own(world: World) {
    let settled = Terms { outcome: Some(Bytes::from_static(b"1")), ..terms() };
    let token = world.win_with(&key("a"), settled.clone()).await;
    world.clock.set(START + WINDOW.saturating_sub(Duration::from_millis(1)));
    let replace = |token| Command::Claim(Terms { replaces: Some(token), ..settled.clone() });
    let met = world.apply(&key("a"), replace(Token(token.0 - 1))).await;
    assert!(matches!(met, Answer::Duplicate(_)), "{met:?}: another's");
    let won = world.apply(&key("a"), replace(token)).await;
    let Answer::Won(won) = won else { panic!("{won:?}") };
    assert!(won.token > token && won.attempt == 1);
    assert_eq!(won.expires_at, START + WINDOW.saturating_sub(Duration::from_millis(1)) + WINDOW);
    let late = world.apply(&key("a"), replace(token)).await;
    assert!(matches!(late, Answer::Duplicate(_)), "{late:?}: whoever replaces it second meets the first");
}
