//! Fills a store as it is after a busy week: through the library, in large commits.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use indicatif::ProgressBar;
use oncegate::actions::{Actions, Applied, JOBS, Mode, Schedule, When};
use oncegate::messages::{Kept, Lead, Message, Status, Thread, phone_name};
use oncegate::reminders::{self, Reminders, Set, Text};
use oncegate::sagas::{Draft, Event, Options as SagaOptions, Outcome, Sagas};
use oncegate::sends::{self, Begin, Begun, Sends};
use oncegate::store::{Change, Clock, Commit, MainStore, Op, Reading, SystemClock, Wanted, Whose};
use oncegate::{Answer, ClaimKey, Command, GuardName, Ledger, Lost, Terms, Verdict, WorkspaceName};
use oncegate_core::job::{self, Job, Reached};
use serde_json::json;

use crate::bench::sagas::SEARCH_IMPORT;
use oncegate_http::decisions::tally::{Minute, Tally};
use oncegate_http::decisions::words::Fate;
use oncegate_process::failure::Failure;

pub const CLAIMS: usize = 1_000_000;
pub const ACTIONS: usize = 100_000;
/// The number of messages, of sends, of reminders and of saga instances.
pub const OF_EACH: usize = 20_000;
pub const LETTERS: usize = 1_000;

/// How many are written in one commit.
const TOGETHER: usize = 1_000;
const DAY: Duration = Duration::from_secs(24 * 3600);
const WEEK_HOURS: i64 = 7 * 24;
const LEADS: usize = 2_000;

const GUARDS: [&str; 5] = ["charge", "mail", "sync", "import", "hook"];
/// A guard, a type and a campaign with few entries, the oldest of all. A search for them has to pass everything else.
pub const RARE: &str = "rare";
const RARE_COUNT: usize = 10;
/// Failed claims, including old ones.
const FAILED: usize = 1_000;

/// How many actions to bring into each state.
const FATES: [(Said, usize); 6] = [
    (Said::Dead, ACTIONS / 20),
    (Said::Unknown, ACTIONS / 100),
    (Said::Cancelled, ACTIONS / 25),
    (Said::Completed, ACTIONS * 6 / 10),
    (Said::Failed, ACTIONS / 20),
    (Said::Nothing, ACTIONS / 4),
];

#[derive(Clone, Copy)]
enum Said {
    Completed,
    Failed,
    Dead,
    Unknown,
    Cancelled,
    /// The action stays pending.
    Nothing,
}

/// How many reminders and sends the server will resolve as soon as it runs.
pub const REMINDERS_DUE: usize = OF_EACH / 2;
pub const SENDS_LOST: usize = OF_EACH / 20;

pub async fn fill(store: Arc<dyn MainStore>, bar: &ProgressBar) -> Result<(), Failure> {
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let fill = Fill { workspace: WorkspaceName::default_workspace(), ledger: ledger.clone(), store, bar };
    fill.claims().await?;
    fill.actions().await?;
    fill.messages().await?;
    fill.sends().await?;
    fill.reminders().await?;
    fill.sagas().await?;
    fill.tallies().await?;
    ledger.close().await;
    Ok(())
}

struct Fill<'a> {
    store: Arc<dyn MainStore>,
    ledger: Arc<Ledger>,
    workspace: WorkspaceName,
    bar: &'a ProgressBar,
}

/// The key of the claim with this number, and its parts.
pub fn claim_key(number: usize) -> (ClaimKey, String) {
    let guard = if number < RARE_COUNT { RARE } else { GUARDS[number % GUARDS.len()] };
    let guard = GuardName::new(guard).expect("a good name");
    let part = format!("order {number}");
    (ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some(&part)]), part)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

impl Fill<'_> {
    /// Splits the numbers into pieces, and shows progress.
    fn pieces(&self, what: &'static str, of: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.bar.set_message(what);
        self.bar.set_length(of as u64);
        self.bar.set_position(0);
        let bar = self.bar.clone();
        (0..of).step_by(TOGETHER).map(move |from| from..of.min(from + TOGETHER)).inspect(move |piece| {
            bar.set_position(piece.start as u64);
        })
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<(), Failure> {
        match self.store.commit(Commit { ops: vec![], changes }).await? {
            committed if committed.is_written() => Ok(()),
            _ => Err(Failure::new("the store is not empty")),
        }
    }

    async fn claims(&self) -> Result<(), Failure> {
        for piece in self.pieces("claims", CLAIMS) {
            let claim = |number| Commit::from(Op { key: claim_key(number).0, command: Command::Claim(terms(number)) });
            let mut settles = vec![];
            for (number, committed) in piece.clone().zip(self.store.commit_all(piece.map(claim).collect()).await) {
                if let Answer::Won(claim) = committed?.only()
                    && number < FAILED
                {
                    let (token, verdict) = (claim.token, Verdict::Failed);
                    let command = Command::Settle { token, verdict, outcome: None };
                    settles.push(Commit::from(Op { key: claim.key.clone(), command }));
                }
            }
            for committed in self.store.commit_all(settles).await {
                committed?;
            }
        }
        Ok(())
    }

    async fn actions(&self) -> Result<(), Failure> {
        let actions = Actions::over(self.store.clone());
        let mut number = 0;
        for (said, count) in FATES {
            for piece in self.pieces("actions", count) {
                let schedules = piece.map(|_| {
                    number += 1;
                    schedule(number, said)
                });
                let schedules = schedules.collect::<Result<Vec<_>, _>>().map_err(failed)?;
                let made = schedules.into_iter().map(|schedule| actions.schedule(&self.workspace, schedule));
                let made = join_all(made).await;
                let made = made.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
                match said {
                    Said::Nothing => {}
                    Said::Cancelled => {
                        let cancelled = made.iter().map(|made| actions.cancel(&self.workspace, made.id));
                        let cancelled = join_all(cancelled).await;
                        cancelled.into_iter().try_for_each(|cancelled| cancelled.map(drop)).map_err(failed)?;
                    }
                    _ => self.say(&actions, said).await?,
                }
            }
        }
        Ok(())
    }

    /// Leases all due actions, and reports this result for them.
    async fn say(&self, actions: &Actions, said: Said) -> Result<(), Failure> {
        let kinds = [RARE, "crm:sync", "report:build"].map(|name| format!("{JOBS}{name}"));
        loop {
            let whose = Whose::One { workspace: self.workspace.clone(), max: TOGETHER };
            let Reading { value: leased, now } = self.store.lease_jobs(&Wanted::new(kinds.clone(), DAY, whose)).await?;
            if leased.jobs.is_empty() {
                return Ok(());
            }
            let say = async |job: &Job| {
                let begin = job::Command::Begin { token: job.token };
                match actions.work(job, begin, now).await? {
                    Applied::Kept(job) => actions.work(&job, command(said, job.token), now).await.map(drop),
                    _ => actions.work(job, command(said, job.token), now).await.map(drop),
                }
            };
            for said in join_all(leased.jobs.iter().map(say)).await {
                said?;
            }
        }
    }

    async fn messages(&self) -> Result<(), Failure> {
        let now = SystemClock.now().micros();
        let mut people = vec![];
        for number in 0..LEADS {
            let phone = Some(format!("+1555{number:07}"));
            let (email, name) = (Some(format!("lead{number}@example.com")), Some(format!("Lead {number}")));
            let lead =
                Lead { phone: phone.clone(), email: email.clone(), name, crm: Default::default(), created_us: now };
            let lead = Kept::new(&self.workspace, lead);
            let thread = Thread { lead: lead.id, phone, email, created_us: now };
            people.push((lead, Kept::new(&self.workspace, thread)));
        }
        for some in people.chunks(TOGETHER) {
            let create = |(lead, thread): &(Kept<Lead>, Kept<Thread>)| {
                let names: Vec<String> = lead.document.phone.iter().map(|phone| phone_name(phone)).collect();
                let thread = Change::Create { record: thread.record(), names: names.clone(), lists: vec![] };
                [Change::Create { record: lead.record(), names, lists: vec![] }, thread]
            };
            self.commit(some.iter().flat_map(create).collect()).await?;
        }
        for piece in self.pieces("messages", OF_EACH) {
            let create = |number: usize| {
                let (lead, thread) = &people[number % LEADS];
                let message = Kept::new(&self.workspace, message(number, lead, thread, now));
                Change::Create { record: message.record(), names: vec![], lists: vec![Message::list_of(lead.id)] }
            };
            self.commit(piece.map(create).collect()).await?;
        }
        Ok(())
    }

    async fn sends(&self) -> Result<(), Failure> {
        let options = sends::Options { lost: sends::Lost::Hold, ..sends::Options::default() };
        let sends = Sends::over(self.store.clone(), self.ledger.clone(), options);
        for piece in self.pieces("sends", OF_EACH) {
            let send = async |number: usize| {
                let campaign = if number < RARE_COUNT { RARE } else { ["spring", "summer"][number % 2] };
                let lease = if number < SENDS_LOST { Duration::from_secs(1) } else { Duration::from_secs(3600) };
                let begin = Begin::new(campaign, format!("recipient {number}")).and_then(|begin| begin.lease(lease));
                let Begun::Proceed(ours) = sends.begin(&self.workspace, &begin.map_err(failed)?).await? else {
                    return Err(Failure::new("the store is not empty"));
                };
                if number >= SENDS_LOST && !number.is_multiple_of(50) {
                    let sent = sends.sent(&self.workspace, ours.id, ours.token, Some(format!("esp {number}")));
                    sent.await.map_err(failed)?;
                }
                Ok(())
            };
            join_all(piece.map(send)).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    async fn reminders(&self) -> Result<(), Failure> {
        let over = |grace| {
            let options = reminders::Options { grace, ..reminders::Options::default() };
            Reminders::over(self.store.clone(), self.ledger.clone(), options)
        };
        let (late, kept) = (over(Duration::from_secs(10)), over(DAY));
        for piece in self.pieces("reminders", OF_EACH) {
            let set = async |number: usize| {
                // A quarter each: missed at the next check, sent at the next check, cancelled, scheduled.
                let (reminders, wait) = match number * 4 / OF_EACH {
                    0 => (&late, Duration::ZERO),
                    1 => (&kept, Duration::ZERO),
                    _ => (&kept, DAY),
                };
                let new = reminders::New {
                    booking: format!("booking {number}"),
                    kind: "day-before".into(),
                    send_at: SystemClock.now() + wait,
                    text: Text {
                        channel: "sms".into(),
                        phone: Some(format!("+1555{number:07}")),
                        email: None,
                        message: format!("See you tomorrow at table {number}."),
                    },
                };
                let Set::Made(made) = reminders.set(&self.workspace, &new).await? else {
                    return Err(Failure::new("the store is not empty"));
                };
                if number * 4 / OF_EACH == 2 {
                    reminders.cancel(&self.workspace, made.id).await.map_err(failed)?;
                }
                Ok(())
            };
            join_all(piece.map(set)).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    async fn sagas(&self) -> Result<(), Failure> {
        let definition = Draft::read("search-import.toml", SEARCH_IMPORT).and_then(Draft::check);
        let definition = definition.map_err(failed)?;
        let sagas = Sagas::over(self.store.clone(), self.ledger.clone(), [definition], SagaOptions::default())
            .expect("one saga");
        for piece in self.pieces("saga instances", OF_EACH) {
            let begin = async |number: usize| {
                let search = format!("search {number}");
                let data = json!({"searchId": search, "projectId": "p", "searchName": "n", "referenceFiles": ["a"]});
                let begun = Event::new("SearchUploadSaved", data).id("saved");
                sagas.handle(&self.workspace, &begun).await?;
                if number.is_multiple_of(2) {
                    let parsed = json!({"searchId": search, "fileId": "a"});
                    let parsed = Event::new("ReferenceFileParsingCompleted", parsed).id("parsed");
                    sagas.handle(&self.workspace, &parsed).await?;
                }
                Ok::<_, Failure>(())
            };
            join_all(piece.map(begin)).await.into_iter().collect::<Result<(), _>>()?;
        }
        for piece in self.pieces("dead letters", LETTERS) {
            for number in piece {
                let event = Event::new("Nonsense", json!({"number": number})).id(number.to_string());
                let handled = sagas.handle(&self.workspace, &event).await?;
                if let Some(Outcome::DeadLetter { id, .. }) = handled.first().map(|handled| &handled.outcome)
                    && number.is_multiple_of(4)
                {
                    sagas.discard_dead_letter(&self.workspace, *id).await.map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// The tallies of several replicas that were busy in every minute of the week.
    async fn tallies(&self) -> Result<(), Failure> {
        self.bar.set_message("a week of tallies");
        let now = SystemClock.now();
        let Minute(last) = Minute::of(now);
        // Hour by hour, as in reality: later counts have later ids.
        let replicas: [Tally; 3] = Default::default();
        for minute in (last - WEEK_HOURS * 60..last).map(Minute) {
            for (replica, guard) in replicas.iter().flat_map(|replica| GUARDS.map(|guard| (replica, guard))) {
                replica.count(self.workspace.as_str(), guard, Fate::Passed, minute);
                replica.count(self.workspace.as_str(), guard, Fate::Stopped, minute);
            }
        }
        for replica in replicas {
            replica.write(&*self.store, now).await?;
        }
        Ok(())
    }
}

/// Of a hundred claims, one is in flight, one is unknown, and the others are done.
fn terms(number: usize) -> Terms {
    let (outcome, lost, lease) = match number % 100 {
        _ if number < FAILED => (None, Lost::TakeOver, DAY),
        0 => (None, Lost::TakeOver, DAY),
        1 => (None, Lost::Hold, Duration::from_millis(1)),
        _ => (Some(format!("{{\"receipt\":\"r-{number}\"}}").into()), Lost::TakeOver, DAY),
    };
    Terms {
        window: 7 * DAY,
        lease,
        lost,
        fingerprint: None,
        attributes: number.is_multiple_of(10).then(|| "{\"source\":\"bench\"}".into()),
        parts: Some(json!([claim_key(number).1]).to_string()),
        outcome,
        replaces: None,
    }
}

fn schedule(number: usize, said: Said) -> Result<Schedule, oncegate::actions::ScheduleError> {
    let name = match number {
        ..=RARE_COUNT => RARE,
        _ => ["crm:sync", "report:build"][number % 2],
    };
    // Every second action is about an entity.
    let payload = match number % 2 {
        0 => json!({"entityId": format!("lead {number}"), "entityType": "lead", "number": number}),
        _ => json!({"number": number}),
    };
    let when = if matches!(said, Said::Nothing | Said::Cancelled) { When::After(DAY) } else { When::Unsaid };
    let delivery = match said {
        Said::Unknown => job::Delivery::AtMostOnce,
        _ => job::Delivery::AtLeastOnce,
    };
    Ok(Schedule::new(name, &payload)?.when(when).mode(Mode::Off).delivery(delivery))
}

fn command(said: Said, token: oncegate::Token) -> job::Command {
    let failure = |reached, is_final| {
        let retry_in = Some(DAY);
        let failure = job::Failure { error: "the receiver said 503".into(), reached, is_final, retry_in };
        job::Command::Fail { token, failure }
    };
    match said {
        Said::Completed => job::Command::Complete { token },
        Said::Failed => failure(Reached::No, false),
        Said::Dead => failure(Reached::No, true),
        Said::Unknown => failure(Reached::Maybe, true),
        Said::Cancelled | Said::Nothing => unreachable!("nobody leases these"),
    }
}

fn message(number: usize, lead: &Kept<Lead>, thread: &Kept<Thread>, now: i64) -> Message {
    let status = match number % 100 {
        0 => Status::Unknown,
        1 | 2 => Status::Failed,
        _ => Status::Sent,
    };
    Message {
        status,
        lead: lead.id,
        thread: thread.id,
        phone: lead.document.phone.clone(),
        email: lead.document.email.clone(),
        text: format!("Your parcel {number} is on its way, and will be with you between nine and noon."),
        channel: "sms".into(),
        attachments: vec![],
        metadata: None,
        error: None,
        created_us: now,
        sent_us: (status == Status::Sent).then_some(now),
        provider_message_id: None,
        lead_is_new: false,
        guard: None,
        key: None,
        resolved: None,
    }
}
