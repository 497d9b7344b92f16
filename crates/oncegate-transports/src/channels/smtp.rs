//! `smtp`: mail, with a `Message-ID` that is the same on every attempt.
//!
//! The server accepts nothing before the final dot has gone out. Its reply to the dot decides, whether yes or no. Without a
//! reply the outcome is unknown.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use lettre::address::Envelope;
use lettre::message::header::{ContentType, Header, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{self, Data, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use oncegate_core::job::Failure;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::mail::{Mail, NotMailed};
use super::secret;
use crate::outgoing::{self, NoConnection};
use oncegate_config::STARTTLS;

/// The longest subject that is taken from the text.
const SUBJECT_CHARS_MAX: usize = 78;

/// The header `Oncegate-Workspace`.
#[derive(Clone)]
struct Workspace(String);

impl Header for Workspace {
    fn name() -> HeaderName {
        HeaderName::new_from_ascii_str("Oncegate-Workspace")
    }

    fn parse(text: &str) -> Result<Workspace, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Workspace(text.to_owned()))
    }

    fn display(&self) -> HeaderValue {
        HeaderValue::new(Workspace::name(), self.0.clone())
    }
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
        username: Option<String>,
        password_file: Option<&Path>,
        allow: Arc<[IpNet]>,
    ) -> Result<MailServer, String> {
        let from = from.parse().map_err(|error| format!("from: {error}"))?;
        let credentials = match (username, secret(password_file)?) {
            (Some(username), Some(password)) => Some(Credentials::new(username, password)),
            (None, None) => None,
            _ => return Err("`username` and `password_file` go together".into()),
        };
        Ok(MailServer { url, from, subject, credentials, allow })
    }

    pub async fn send(&self, mail: &Mail<'_>, within: Duration) -> Result<(), NotMailed> {
        let deadline = Instant::now() + within;
        let (envelope, mail) = self.compose(mail)?;
        let opened = timeout_at(deadline, self.open(&envelope, within)).await;
        let mut connection =
            opened.unwrap_or_else(|_| Err(NotMailed::Unreached(format!("not ready within {within:?}"))))?;
        // From here on the mail may have arrived.
        let answered = timeout_at(deadline, connection.message(&mail)).await;
        let sent = match answered {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.status().is_some() => Err(no(&error)),
            Ok(Err(error)) => Err(Failure::unknown(format!("no reply to the final dot: {error}")).into()),
            Err(_) => Err(Failure::unknown(format!("no reply to the final dot within {within:?}")).into()),
        };
        // The server has answered already, so QUIT gets at most a second.
        let _ = timeout_at(deadline.min(Instant::now() + Duration::from_secs(1)), connection.quit()).await;
        sent
    }

    /// Everything up to the server's go-ahead for the text. A failure here means that nothing was sent.
    async fn open(&self, envelope: &Envelope, within: Duration) -> Result<AsyncSmtpConnection, NotMailed> {
        let (is_encrypted, is_upgraded) = (self.url.scheme() == "smtps", self.url.scheme() == STARTTLS);
        let port = if is_encrypted {
            465
        } else if is_upgraded {
            587
        } else {
            25
        };
        let addresses = outgoing::addresses(&self.url, port, &self.allow).await;
        let addresses = addresses.map_err(|error| match error {
            NoConnection::Refused(_) => Failure::refused(error.to_string()).into(),
            _ => NotMailed::Unreached(error.to_string()),
        })?;
        let hello = ClientId::default();
        let tls = || {
            let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
            TlsParameters::new(host.to_owned()).map_err(|error| Failure::refused(error.to_string()))
        };
        let implicit = if is_encrypted { Some(tls()?) } else { None };
        let no = |error| no(&error);
        let connecting = AsyncSmtpConnection::connect_tokio1(&addresses[..], Some(within), &hello, implicit, None);
        let mut connection = connecting.await.map_err(no)?;
        if connection.can_starttls() {
            connection.starttls(tls()?, &hello).await.map_err(no)?;
        }
        if is_upgraded && !connection.is_encrypted() {
            // A proxy in between may have stripped the offer of STARTTLS. A retry may see it again.
            return Err(Failure::busy("the server offers no STARTTLS, and the config wants it", None).into());
        }
        if let Some(credentials) = &self.credentials {
            let is_near = addresses.iter().all(|address| address.ip().is_loopback());
            if !connection.is_encrypted() && !is_near {
                return Err(
                    Failure::refused("the server offers no encryption, and a password is not sent without").into()
                );
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
        let address = mail.to.ok_or_else(|| Failure::refused("there is no email address to send to"))?;
        let to: Mailbox =
            address.parse().map_err(|_| Failure::refused("the email address is not one that SMTP can take"))?;
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
            .header(Workspace(mail.workspace.to_string()))
            .body(mail.text.clone())
            .map_err(|error| Failure::refused(format!("no mail can be made of it: {error}")))?;
        Ok((mail.envelope().clone(), mail.formatted()))
    }
}

/// The server refused, or was never reached. A 4yz reply is a refusal for now.
fn no(error: &lettre::transport::smtp::Error) -> NotMailed {
    match (error.status(), error.is_transient()) {
        (None, _) => NotMailed::Unreached(format!("the mail server was not reached: {error}")),
        (Some(_), true) => Failure::busy(format!("the mail server refused for now: {error}"), None).into(),
        (Some(_), false) => Failure::refused(format!("the mail server did not take it: {error}")).into(),
    }
}
