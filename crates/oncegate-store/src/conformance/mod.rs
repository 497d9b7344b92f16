//! The suite that every store passes.
//!
//! A store's test file names a set-up closure and calls [`suite!`](crate::suite); each rule becomes a test of its own.
//! Rules take a [`World`]: an empty store on a clock that the rule moves.

pub mod books;
pub mod histories;
pub mod keyring;
pub mod queue;
pub mod races;
pub mod rules;
mod wrapper;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{Answer, Claim, ClaimKey, Command, GuardName, Lost, Terms, Time, Token, Verdict, WorkspaceName};

pub use wrapper::Wrapper;

use crate::{Commit, Committed, MainStore, ManualClock, Op};

/// Where the clock of every rule begins.
pub const START: Time = Time::from_micros(1_800_000_000_000_000);
/// The window of [`terms`].
pub const WINDOW: Duration = Duration::from_secs(900);
/// The lease of [`terms`], and of the workers in the rules.
pub const LEASE: Duration = Duration::from_secs(30);

/// An empty store and its clock.
pub struct World {
    /// The store under test.
    pub store: Arc<dyn MainStore>,
    /// The clock of the store, which the rule moves.
    pub clock: Arc<ManualClock>,
    /// What must live as long as the store: a temporary folder, a schema.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl World {
    /// Commits operations on claims. Panics if the store fails.
    pub async fn commit(&self, ops: Vec<Op>) -> Committed {
        self.store.commit(Commit { ops, changes: vec![] }).await.expect("the store is there")
    }

    /// Commits one command on the claim under `key`, and returns the answer.
    pub async fn apply(&self, key: &ClaimKey, command: Command) -> Answer {
        self.commit(vec![Op { key: key.clone(), command }]).await.only()
    }

    /// Claims `key` with the usual [`terms`].
    pub async fn claim(&self, key: &ClaimKey) -> Answer {
        self.apply(key, Command::Claim(terms())).await
    }

    /// Claims `key` with the usual [`terms`], and returns the owner's token. Panics if the caller does not become the owner.
    pub async fn win(&self, key: &ClaimKey) -> Token {
        self.win_with(key, terms()).await
    }

    /// Like [`win`](World::win), with these terms.
    pub async fn win_with(&self, key: &ClaimKey, terms: Terms) -> Token {
        match self.apply(key, Command::Claim(terms)).await {
            Answer::Won(claim) => claim.token,
            other => panic!("expected to win, got {other:?}"),
        }
    }

    /// The live claim under `key`.
    pub async fn read(&self, key: &ClaimKey) -> Option<Claim> {
        self.store.read(key).await.expect("the store is there").value
    }
}

/// The workspace with this name. Panics if the name breaks the rules of names.
pub fn workspace(name: &str) -> WorkspaceName {
    WorkspaceName::new(name).expect("a good name")
}

/// The key with this one part in the default workspace.
pub fn key(part: &str) -> ClaimKey {
    key_in("default", part)
}

/// The key with this one part in a workspace. All keys of the suite belong to the guard `test`.
pub fn key_in(in_workspace: &str, part: &str) -> ClaimKey {
    ClaimKey::of(&workspace(in_workspace), &GuardName::new("test").expect("a good name"), &[Some(part)])
}

/// The usual terms: the claim of a lost owner is taken over, and nothing optional is set.
pub fn terms() -> Terms {
    Terms::new(WINDOW, LEASE, Lost::TakeOver)
}

/// The command of an owner whose effect happened, with this outcome.
pub fn settle(token: Token, outcome: impl Into<Bytes>) -> Command {
    Command::Settle { token, verdict: Verdict::Done, outcome: Some(outcome.into()) }
}

/// Makes a test of each rule. `$setup` is an async function from a clock to a [`World`];
/// `$rounds` is how often the race on one key is run; attributes before it go on every test.
#[macro_export]
macro_rules! suite {
    ($(#[$attribute:meta])* $setup:path, rounds = $rounds:expr) => {
        $crate::suite!(@rules [$(#[$attribute])*] $setup;
            rules::a_claim_keeps_every_field,
            rules::the_first_wins_the_second_meets_it_and_reads_its_outcome,
            rules::a_window_ends_at_its_end_to_the_millisecond,
            rules::a_lease_ends_at_its_end_to_the_millisecond,
            rules::tokens_keep_growing_across_expiry_sweep_and_a_clock_stepping_back,
            rules::a_stale_owner_is_fenced_in_every_verb,
            rules::settling_twice_the_same_is_a_success_and_otherwise_refused,
            rules::a_held_claim_is_unknown_after_its_lease_and_is_resolved_once,
            rules::an_abandoned_claim_is_taken_over_or_held_at_once,
            rules::releasing_and_forgetting_make_room,
            rules::a_fingerprint_that_differs_is_a_mismatch,
            rules::workspaces_do_not_see_each_other,
            rules::a_claim_is_not_there_under_another_guards_name,
            rules::a_commit_is_all_or_nothing,
            rules::a_commit_that_names_a_key_twice_is_refused,
            rules::one_bad_operation_fails_alone,
            rules::many_commits_stand_each_by_itself,
            rules::an_outcome_of_the_largest_size_comes_back_byte_for_byte,
            rules::lists_are_newest_first_filtered_and_paged_without_gaps,
            rules::sweeping_removes_the_expired_and_nothing_else,
            rules::duplicates_are_counted_on_the_owner_that_was_met,
            rules::a_waiter_registered_before_the_settle_is_woken,
            keyring::workspaces_and_keys_are_kept_and_revoked,
            books::a_record_is_created_once_and_changed_only_from_its_last_version,
            books::a_name_is_one_records_alone,
            books::a_record_is_removed_whole_from_its_last_version_alone,
            books::who_looks_for_what_cannot_be_there_is_nobody_elses_trouble,
            books::claims_and_changes_stand_or_fall_together,
            books::a_claim_settled_as_it_is_made_can_be_taken_back_by_its_maker_alone,
            books::lists_of_records_are_newest_first_filtered_and_paged,
            books::what_is_rare_in_a_list_is_found_behind_all_the_rest,
            books::records_are_counted_as_a_listing_finds_them_and_no_further_than_its_limit,
            books::a_record_past_its_end_is_swept_with_its_names_and_lists_and_others_are_not,
            books::what_each_workspace_has_stored_is_measured_in_parts,
            books::an_end_may_be_moved_set_and_taken_back,
            books::a_sweep_of_records_is_bounded_and_none_is_swept_twice,
            books::a_sweep_that_meets_a_moving_end_removes_all_of_a_record_or_nothing,
            queue::a_job_keeps_every_field_and_is_leased_when_due_to_the_millisecond,
            queue::the_longest_overdue_are_leased_first_and_no_more_than_asked_for,
            queue::a_worker_paused_past_its_lease_changes_nothing,
            books::of_many_who_create_the_same_thing_at_once_one_does,
            queue::no_two_workers_lease_the_same_job,
            queue::one_workspaces_jobs_do_not_hold_up_anothers,
            queue::one_job_in_a_lane_is_at_work_at_a_time,
            queue::of_many_workers_two_never_have_the_same_lane,
            queue::jobs_are_found_and_listed_newest_first,
            queue::jobs_are_counted_as_a_listing_finds_them_and_no_further_than_its_limit,
            rules::a_claim_that_is_replaced_has_the_next_token_and_a_window_of_its_own,
            books::of_concurrent_changes_to_one_record_none_is_lost_and_none_counted_twice,
            histories::concurrent_clients_see_one_owner_and_one_outcome,
        );

        $(#[$attribute])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn sixty_four_tasks_on_one_key_have_one_winner() {
            let clock = std::sync::Arc::new($crate::ManualClock::starting_at($crate::conformance::START));
            let world = $setup(clock).await;
            $crate::conformance::races::one_winner_each_round(world, $rounds).await;
        }
    };
    (@rules $attributes:tt $setup:path; $($module:ident::$rule:ident,)*) => {
        $($crate::suite!(@rule $attributes $setup; $module::$rule);)*
    };
    (@rule [$(#[$attribute:meta])*] $setup:path; $module:ident::$rule:ident) => {
        $(#[$attribute])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $rule() {
            let clock = std::sync::Arc::new($crate::ManualClock::starting_at($crate::conformance::START));
            let world = $setup(clock).await;
            $crate::conformance::$module::$rule(world).await;
        }
    };
}
