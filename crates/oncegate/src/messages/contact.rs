//! The lead and the thread of a message. A workspace has one lead and one thread for each phone and each address.

use oncegate_core::{ClaimKey, Time, WorkspaceName};
use oncegate_store::{At, Change, Commit};
use serde_json::value::RawValue;
use tokio::time::Instant;
use uuid::Uuid;

use super::record::{CrmIds, Lead, Thread, email_name, phone_name};
use super::{GUARD, Messages, Refused, Reply};
use crate::channel::Attachment;
use crate::document::{Kept, place, until_written};

/// The recipient of a message. One of lead, phone and email is needed.
#[derive(Clone, Debug, Default)]
pub struct Contact {
    /// The id of the lead.
    pub lead: Option<Uuid>,
    /// The phone number.
    pub phone: Option<String>,
    /// The email address.
    pub email: Option<String>,
    /// The name of the person.
    pub name: Option<String>,
    /// What other systems call the person.
    pub crm: CrmIds,
}

/// A message to send.
#[derive(Clone, Debug, Default)]
pub struct Post {
    /// The recipient.
    pub contact: Contact,
    /// The text.
    pub text: String,
    /// The files to attach.
    pub attachments: Vec<Attachment>,
    /// The name of the channel: `sms` if there is a phone, else `email`, unless it is given.
    pub channel: Option<String>,
    /// A JSON object, kept and passed on.
    pub metadata: Option<Box<RawValue>>,
    /// Any text: with it the message is another one, and is sent although it is the same.
    pub nonce: Option<String>,
}

impl Contact {
    /// The lead that is created if none exists.
    fn new_lead(&self, workspace: &WorkspaceName, created_us: i64) -> Kept<Lead> {
        let Contact { phone, email, name, crm, .. } = self.clone();
        Kept::new(workspace, Lead { phone, email, name, crm, created_us })
    }
}

impl Post {
    /// The phone and the address that the message goes to: the request's, or the lead's if the request names only a lead.
    pub(super) fn reached_at<'a>(&'a self, lead: Option<&'a Lead>) -> (Option<&'a str>, Option<&'a str>) {
        let Contact { phone, email, .. } = &self.contact;
        match (phone, email, lead) {
            (None, None, Some(lead)) => (lead.phone.as_deref(), lead.email.as_deref()),
            _ => (phone.as_deref(), email.as_deref()),
        }
    }

    pub(super) fn channel_name(&self, has_phone: bool) -> &str {
        self.channel.as_deref().unwrap_or(if has_phone { "sms" } else { "email" })
    }

    /// Two requests with the same key are the same message. The key is made of the contact and the text, byte for byte, as
    /// the request gives them. If the request names only a lead, the contact is the lead's phone, or its email if it has no
    /// phone.
    pub(super) fn key<'a>(
        &'a self,
        workspace: &WorkspaceName,
        lead: Option<&'a Lead>,
    ) -> (ClaimKey, Vec<Option<&'a str>>) {
        let is_named = self.contact.phone.is_some() || self.contact.email.is_some();
        let (phone, email) = self.reached_at(lead);
        let email = email.filter(|_| is_named || phone.is_none());
        let mut parts = vec![phone, email, Some(self.text.as_str())];
        // The same parts as `POST /api/claims/find` is given: without a nonce there are three.
        parts.extend(self.nonce.as_deref().map(Some));
        (ClaimKey::of(workspace, &GUARD, &parts), parts)
    }
}

/// The existing lead and thread, and when they were read.
pub struct Found {
    pub lead: Option<Kept<Lead>>,
    pub thread: Option<Kept<Thread>>,
    /// The email belongs to another lead than the phone.
    email_is_taken: bool,
    pub now: Time,
    pub asked: Instant,
}

/// A lead, and the change to write for it, if any.
pub struct Chosen {
    pub lead: Kept<Lead>,
    pub is_new: bool,
    pub change: Option<Change>,
}

impl<R: Reply> Messages<R> {
    pub(super) async fn look(&self, workspace: &WorkspaceName, contact: &Contact) -> Result<Found, Refused> {
        let asked = Instant::now();
        let thread_name = |phone: Option<&str>, email: Option<&str>| phone.map(phone_name).or(email.map(email_name));
        let mut places = vec![];
        match contact.lead {
            Some(id) => places.push(place::<Lead>(workspace, At::Id(id))),
            None => {
                places.extend(contact.phone.iter().map(|phone| place::<Lead>(workspace, At::Name(phone_name(phone)))));
                places.extend(contact.email.iter().map(|email| place::<Lead>(workspace, At::Name(email_name(email)))));
            }
        }
        let of_leads = places.len();
        let named = thread_name(contact.phone.as_deref(), contact.email.as_deref());
        places.extend(named.map(|name| place::<Thread>(workspace, At::Name(name))));
        let mut reading = self.store.find(&places).await?;
        let mut threads = reading.value.split_off(of_leads);
        let mut leads = reading.value.into_iter().map(|record| record.map(Kept::<Lead>::read).transpose());
        // The lead of the phone comes before the lead of the address.
        let first = leads.next().transpose()?.flatten();
        let second = leads.next().transpose()?.flatten();
        let email_is_taken = matches!((&first, &second), (Some(first), Some(second)) if first.id != second.id);
        let lead = first.or(second);
        if let (Some(id), None) = (contact.lead, &lead) {
            return Err(Refused::NoLead(id.to_string()));
        }
        // The request names only the lead's id: the thread is that of the lead's own phone, or address.
        if let (true, Some(Lead { phone, email, .. })) = (threads.is_empty(), lead.as_ref().map(|lead| &lead.document))
            && let Some(name) = thread_name(phone.as_deref(), email.as_deref())
        {
            threads = self.store.find(&[place::<Thread>(workspace, At::Name(name))]).await?.value;
        }
        let thread = threads.pop().flatten().map(Kept::read).transpose()?;
        Ok(Found { lead, thread, email_is_taken, now: reading.now, asked })
    }
}

impl<R: Reply> Messages<R> {
    /// The lead with this phone, or else with this email, updated with the contact's data; or a new lead. Also returns whether it is new.
    pub async fn lead(&self, workspace: &WorkspaceName, contact: &Contact) -> Result<(Kept<Lead>, bool), Refused> {
        until_written(|| async {
            let found = self.look(workspace, contact).await?;
            let Chosen { lead, is_new, change } = found.lead(workspace, contact);
            let Some(change) = change else { return Ok(Some((lead, is_new))) };
            let committed = self.store.commit(Commit { ops: vec![], changes: vec![change] }).await?;
            Ok::<_, Refused>(committed.is_written().then_some((lead, is_new)))
        })
        .await
    }
}

impl Found {
    /// The lead of a contact: the existing one, updated with the request's data, or a new one.
    pub fn lead(&self, workspace: &WorkspaceName, contact: &Contact) -> Chosen {
        let Some(lead) = &self.lead else {
            let lead = contact.new_lead(workspace, self.now.micros());
            let names = names(contact.phone.as_deref(), contact.email.as_deref());
            let change = Change::Create { record: lead.record(), names, lists: vec![] };
            return Chosen { lead, is_new: true, change: Some(change) };
        };
        let known = &lead.document;
        // A lead found by phone gains the email, and the reverse. A lead found by id gains neither: the phone or email
        // beside the id may belong to another person.
        let by_contact = contact.lead.is_none();
        let new_phone = contact.phone.as_deref().filter(|_| by_contact && known.phone.is_none());
        let new_email =
            contact.email.as_deref().filter(|_| by_contact && known.email.is_none() && !self.email_is_taken);
        let better = Lead {
            phone: new_phone.map(str::to_owned).or_else(|| known.phone.clone()),
            email: new_email.map(str::to_owned).or_else(|| known.email.clone()),
            name: contact.name.clone().or_else(|| known.name.clone()),
            crm: known.crm.updated(&contact.crm),
            created_us: known.created_us,
        };
        if better == *known {
            return Chosen { lead: lead.clone(), is_new: false, change: None };
        }
        let lead = lead.with(better);
        let change = Change::Replace { record: lead.record(), names: names(new_phone, new_email) };
        Chosen { lead, is_new: false, change: Some(change) }
    }

    /// The thread of a phone, or of an address if there is no phone, and the change to write for it.
    pub fn thread(
        &self,
        lead: &Kept<Lead>,
        phone: Option<&str>,
        email: Option<&str>,
    ) -> (Kept<Thread>, Option<Change>) {
        if let Some(thread) = &self.thread {
            return (thread.clone(), None);
        }
        let email = email.filter(|_| phone.is_none());
        let document = Thread {
            lead: lead.id,
            phone: phone.map(str::to_owned),
            email: email.map(str::to_owned),
            created_us: self.now.micros(),
        };
        let thread = Kept::new(&lead.workspace, document);
        let change = Change::Create { record: thread.record(), names: names(phone, email), lists: vec![] };
        (thread, Some(change))
    }
}

fn names(phone: Option<&str>, email: Option<&str>) -> Vec<String> {
    phone.map(phone_name).into_iter().chain(email.map(email_name)).collect()
}
