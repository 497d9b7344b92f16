//! `smtp`: mail, with a `Message-ID` that is the same on every try.
//!
//! Until the final dot has gone out the server has taken nothing. A reply to it, yes or no, is the server's word; no
//! reply leaves it open.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use lettre::address::Envelope;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{self, Data, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use oncegate_core::job::Failure;
use tokio::time::{Instant, timeout_at};
use url::Url;
use uuid::Uuid;

use super::{busy, refused, unknown};
use crate::outgoing;

/// Of a subject that is taken from the text.
const SUBJECT_CHARS_MAX: usize = 78;

/// A mail.
pub struct Mail<'a> {
    pub id: Uuid,
    pub to: Option<&'a str>,
    /// Else the server's, else the first line.
    pub subject: Option<&'a str>,
    pub text: String,
}

pub struct MailServer {
    url: Url,
    from: Mailbox,
    subject: Option<String>,
    credentials: Option<Credentials>,
    allow: Arc<[IpNet]>,
}

impl MailServer {
    pub fn new(
        url: Url,
        from: &str,
        subject: Option<String>,
        credentials: Option<(String, String)>,
        allow: Arc<[IpNet]>,
    ) -> Result<MailServer, String> {
        let from = from.parse().map_err(|error| format!("from: {error}"))?;
        let credentials = credentials.map(|(username, password)| Credentials::new(username, password));
        Ok(MailServer { url, from, subject, credentials, allow })
    }

    pub async fn send(&self, mail: &Mail<'_>, within: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + within;
        let (envelope, mail) = self.compose(mail)?;
        let opened = timeout_at(deadline, self.open(&envelope, within)).await;
        let mut connection = opened.unwrap_or_else(|_| Err(refused(format!("not ready within {within:?}"))))?;
        // From here on it may have arrived.
        let answered = timeout_at(deadline, connection.message(&mail)).await;
        let sent = match answered {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.status().is_some() => Err(no(&error)),
            Ok(Err(error)) => Err(unknown(format!("no reply to the final dot: {error}"))),
            Err(_) => Err(unknown(format!("no reply to the final dot within {within:?}"))),
        };
        // It has answered already; a farewell is not worth waiting for.
        let _ = timeout_at(deadline.min(Instant::now() + Duration::from_secs(1)), connection.quit()).await;
        sent
    }

    /// Everything up to the server's go-ahead for the text. Nothing that fails here has sent anything.
    async fn open(&self, envelope: &Envelope, within: Duration) -> Result<AsyncSmtpConnection, Failure> {
        let is_encrypted = self.url.scheme() == "smtps";
        let addresses = outgoing::addresses(&self.url, if is_encrypted { 465 } else { 25 }, &self.allow).await;
        let addresses = addresses.map_err(|error| refused(error.to_string()))?;
        let hello = ClientId::default();
        let tls = || {
            let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
            TlsParameters::new(host.to_owned()).map_err(|error| refused(error.to_string()))
        };
        let implicit = if is_encrypted { Some(tls()?) } else { None };
        let no = |error| no(&error);
        let connecting = AsyncSmtpConnection::connect_tokio1(&addresses[..], Some(within), &hello, implicit, None);
        let mut connection = connecting.await.map_err(no)?;
        if connection.can_starttls() {
            connection.starttls(tls()?, &hello).await.map_err(no)?;
        }
        if let Some(credentials) = &self.credentials {
            let is_near = addresses.iter().all(|address| address.ip().is_loopback());
            if !connection.is_encrypted() && !is_near {
                return Err(refused("the server offers no encryption, and a password is not sent without"));
            }
            connection.auth(DEFAULT_MECHANISMS, credentials).await.map_err(no)?;
        }
        connection.command(commands::Mail::new(envelope.from().cloned(), vec![])).await.map_err(no)?;
        for recipient in envelope.to() {
            connection.command(Rcpt::new(recipient.clone(), vec![])).await.map_err(no)?;
        }
        connection.command(Data).await.map_err(no)?;
        Ok(connection)
    }

    fn compose(&self, mail: &Mail<'_>) -> Result<(Envelope, Vec<u8>), Failure> {
        let address = mail.to.ok_or_else(|| refused("there is no email address to send to"))?;
        let to: Mailbox = address.parse().map_err(|_| refused("the email address is not one that SMTP can take"))?;
        let first_line = mail.text.trim().lines().next().unwrap_or_default();
        let subject = match mail.subject.or(self.subject.as_deref()) {
            Some(subject) => subject.to_owned(),
            None => first_line.chars().take(SUBJECT_CHARS_MAX).collect(),
        };
        let mail = Message::builder()
            .from(self.from.clone())
            .to(to)
            .subject(subject)
            .message_id(Some(format!("<{}@{}>", mail.id, self.from.email.domain())))
            .header(ContentType::TEXT_PLAIN)
            .body(mail.text.clone())
            .map_err(|error| refused(format!("no mail can be made of it: {error}")))?;
        Ok((mail.envelope().clone(), mail.formatted()))
    }
}

/// The server said no, or was never reached. A 4yz reply is a no for now.
fn no(error: &lettre::transport::smtp::Error) -> Failure {
    match error.is_transient() {
        true => busy(format!("the mail server refused for now: {error}"), None),
        false => refused(format!("the mail server did not take it: {error}")),
    }
}
