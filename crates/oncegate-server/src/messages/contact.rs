//! The lead and the thread of a message. A workspace has one lead and one thread for each phone and each address.

use oncegate::store::Change;
use oncegate::{Time, WorkspaceName};
use tokio::time::Instant;

use super::Messages;
use super::document::{Kept, Lead, Thread, by_id, by_name, email_name, phone_name};
use super::post::{Contact, no_lead};
use crate::problem::Problem;

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

impl Messages {
    pub async fn look(&self, workspace: &WorkspaceName, contact: &Contact) -> Result<Found, Problem> {
        let asked = Instant::now();
        let thread_name = |phone: Option<&str>, email: Option<&str>| phone.map(phone_name).or(email.map(email_name));
        let mut places = vec![];
        match contact.lead {
            Some(id) => places.push(by_id::<Lead>(workspace, id)),
            None => {
                places.extend(contact.phone.iter().map(|phone| by_name::<Lead>(workspace, phone_name(phone))));
                places.extend(contact.email.iter().map(|email| by_name::<Lead>(workspace, email_name(email))));
            }
        }
        let of_leads = places.len();
        let named = thread_name(contact.phone.as_deref(), contact.email.as_deref());
        places.extend(named.map(|name| by_name::<Thread>(workspace, name)));
        let mut reading = self.store.find(&places).await?;
        let mut threads = reading.value.split_off(of_leads);
        let mut leads = reading.value.into_iter().map(|record| record.map(Kept::<Lead>::read).transpose());
        // The lead of the phone comes before the lead of the address.
        let first = leads.next().transpose()?.flatten();
        let second = leads.next().transpose()?.flatten();
        let email_is_taken = matches!((&first, &second), (Some(first), Some(second)) if first.id != second.id);
        let lead = first.or(second);
        if let (Some(id), None) = (contact.lead, &lead) {
            return Err(no_lead(id));
        }
        // The request names only the lead's id: the thread is that of the lead's own phone, or address.
        if let (true, Some(Lead { phone, email, .. })) = (threads.is_empty(), lead.as_ref().map(|lead| &lead.document))
            && let Some(name) = thread_name(phone.as_deref(), email.as_deref())
        {
            threads = self.store.find(&[by_name::<Thread>(workspace, name)]).await?.value;
        }
        let thread = threads.pop().flatten().map(Kept::read).transpose()?;
        Ok(Found { lead, thread, email_is_taken, now: reading.now, asked })
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
