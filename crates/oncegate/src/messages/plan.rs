//! Everything that a request writes, in one commit.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::job::{self, Decision, Delivery, Job, Tries};
use oncegate_core::{Answer, Command, Lost, Terms, Time, WorkspaceName};
use oncegate_store::{Change, Commit, Committed, Op};
use uuid::Uuid;

use super::accept::Guard;
use super::contact::{Found, Post};
use super::idempotency::Asked;
use super::record::{Hex, Lead, Message, Status};
use super::work::Claims;
use super::{JOB, Messages, Refused, Reply};
use crate::document::Kept;

/// The backoff takes off up to half of a pause: a pause is at least half a second and at most 5 s.
const TRIES: Tries = Tries { max: 3, pause: Duration::from_secs(1), pause_max: Duration::from_secs(5) };

/// The input of a plan.
pub struct Request<'a> {
    pub workspace: &'a WorkspaceName,
    pub asked: Option<&'a Asked>,
    pub post: &'a Post,
    /// The parts of the duplicate claim's key, if the configuration keeps them.
    pub parts: Option<String>,
}

impl Request<'_> {
    /// The claims that the request has won, with their tokens.
    pub fn claims(&self, guard: &Guard, committed: &Committed) -> Claims {
        let mut won = committed.answers.iter().filter_map(|answer| match answer {
            Answer::Won(claim) => Some(claim.token),
            _ => None,
        });
        let key = self.asked.and_then(|asked| Some((asked.key.clone(), won.next()?)));
        let guard = match guard {
            Guard::None => None,
            Guard::Within(key) => won.next().map(|token| (key.clone(), token)),
            Guard::Separate(won) => Some((won.key().clone(), won.token())),
        };
        Claims { key, guard }
    }
}

/// What a request writes.
pub struct Plan {
    pub commit: Commit,
    pub message: Kept<Message>,
    pub lead: Kept<Lead>,
    pub job: Job,
}

impl<R: Reply> Messages<R> {
    /// Refuses an unsuitable channel before anything is claimed.
    pub(super) fn check_channel(
        &self,
        workspace: &WorkspaceName,
        post: &Post,
        lead: Option<&Lead>,
    ) -> Result<(), Refused> {
        let (phone, email) = post.reached_at(lead);
        let name = post.channel_name(phone.is_some());
        let needs_email = self.channels.channel(workspace, name).is_some_and(|channel| channel.needs_email());
        if needs_email && email.is_none() { Err(Refused::NoAddress(name.to_owned())) } else { Ok(()) }
    }

    /// Everything that the request writes, decided from what was found.
    pub(super) fn plan(&self, request: &Request<'_>, found: &Found, guard: &Guard, has_slot: bool) -> Plan {
        let Request { workspace, asked, post, parts } = request;
        let chosen = found.lead(workspace, &post.contact);
        let of_lead = &chosen.lead.document;
        let (phone, email) = post.reached_at(Some(of_lead));
        let channel_name = post.channel_name(phone.is_some());
        let channel = self.channels.channel(workspace, channel_name);
        let delivery = channel.map_or(Delivery::AtMostOnce, |channel| channel.delivery());
        let (thread, thread_change) = found.thread(&chosen.lead, phone, email);
        let guard_key = match guard {
            Guard::None => None,
            Guard::Within(key) => Some(Hex::of(key)),
            Guard::Separate(won) => Some(Hex::of(won.key())),
        };
        let message = Kept::new(
            workspace,
            Message {
                status: if has_slot { Status::Sending } else { Status::Queued },
                lead: chosen.lead.id,
                thread: thread.id,
                phone: phone.map(str::to_owned),
                email: email.map(str::to_owned),
                text: post.text.clone(),
                channel: channel_name.to_owned(),
                attachments: post.attachments.clone(),
                metadata: post.metadata.clone(),
                error: None,
                created_us: found.now.micros(),
                sent_us: None,
                provider_message_id: None,
                lead_is_new: chosen.is_new,
                guard: guard_key,
                key: asked.map(|asked| Hex::of(&asked.key)),
                resolved: None,
            },
        );
        let job = self.job(&message, delivery, found.now, has_slot);
        let mut ops: Vec<Op> = asked.iter().map(|asked| self.claim_key(asked, message.id)).collect();
        if let Guard::Within(key) = guard {
            let command = Command::Claim(self.guard_terms(parts.clone(), Some(message.id)));
            ops.push(Op { key: key.clone(), command });
        }
        let mut changes: Vec<Change> = chosen.change.into_iter().chain(thread_change).collect();
        let lists = vec![Message::list_of(chosen.lead.id)];
        changes.push(Change::Create { record: message.record(), names: vec![], lists });
        changes.push(Change::Enqueue(job.clone()));
        Plan { commit: Commit { ops, changes }, message, lead: chosen.lead, job }
    }

    /// The job that sends the message. If there is a slot, the job is leased in the commit that writes it. That commit also
    /// begins the send, if the send has a key that its receiver honours. Any other send begins by a commit of its own, just
    /// before the call.
    fn job(&self, message: &Kept<Message>, delivery: Delivery, now: Time, has_slot: bool) -> Job {
        let new = Job::new(&message.workspace, message.id, JOB, Bytes::new(), TRIES, now);
        let waiting = Job { delivery, ..new };
        if !has_slot {
            return waiting;
        }
        let lease = job::Command::Lease { lease: self.options.lease };
        match job::decide(&waiting, &lease, now) {
            // The job is new, so the lease is part of its first version.
            Decision::Keep(leased) => Job { version: waiting.version, ..leased },
            refused => unreachable!("a new job is due and can be leased: {refused:?}"),
        }
    }

    /// The terms of the duplicate claim. If the message is in the same commit, the claim is settled at once.
    pub(super) fn guard_terms(&self, parts: Option<String>, message: Option<Uuid>) -> Terms {
        let terms = Terms::new(self.options.window, self.options.lease, Lost::TakeOver);
        Terms { parts, outcome: message.map(|message| message.to_string().into()), ..terms }
    }
}
