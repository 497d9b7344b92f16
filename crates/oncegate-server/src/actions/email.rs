//! `email`: the payload's `to`, `subject` and `text`, by SMTP.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use oncegate_core::job::Failure;
use serde::Deserialize;
use url::Url;

use super::Effect;
use crate::channels::smtp::{Mail, MailServer, NotMailed};
use crate::channels::{busy, refused};

pub struct Email(MailServer);

#[derive(Deserialize)]
struct Payload {
    to: String,
    subject: Option<String>,
    text: String,
}

impl Email {
    pub fn new(
        url: &Url,
        from: &str,
        username: Option<String>,
        password_file: Option<&Path>,
        allow: &Arc<[IpNet]>,
    ) -> Result<Email, String> {
        MailServer::new(url.clone(), from, None, username, password_file, allow.clone()).map(Email)
    }

    pub async fn send(&self, effect: Effect<'_>, within: Duration) -> Result<(), Failure> {
        let payload: Payload = serde_json::from_str(effect.payload.get())
            .map_err(|_| refused("the payload of an email has `to` and `text`, and maybe `subject`"))?;
        let subject = payload.subject.as_deref();
        let mail = Mail { id: effect.effect_key, to: Some(&payload.to), subject, text: payload.text };
        self.0.send(&mail, within).await.map_err(|error| match error {
            NotMailed::Unreached(error) => busy(error, None),
            NotMailed::Failed(failure) => failure,
        })
    }
}
