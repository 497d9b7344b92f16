//! `log`: one JSON line for each send, in `sends.jsonl`. The first run needs no account anywhere.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use oncegate::store::{Clock, SystemClock};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Attachment, Outgoing, Receipt, Sent, refused, unknown};

pub struct SendLog(Mutex<Lines>);

struct Lines {
    file: File,
    /// The last line was not written to its end.
    is_broken: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    at: String,
    id: Uuid,
    channel: &'a str,
    recipient_phone: Option<&'a str>,
    recipient_email: Option<&'a str>,
    message: &'a str,
    attachments: &'a [Attachment],
    metadata: Option<&'a RawValue>,
}

impl SendLog {
    /// For their owner's eyes only: there are texts and addresses in it.
    pub fn open(folder: &Path) -> Result<SendLog, String> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        let path = folder.join("sends.jsonl");
        let opened = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .and_then(|()| std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path));
        opened
            .map(|file| SendLog(Mutex::new(Lines { file, is_broken: false })))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// One write, whole: lines of several servers that share the file do not mix.
    pub fn send(&self, message: &Outgoing<'_>) -> Sent {
        let line = Line {
            at: SystemClock.now().to_string(),
            id: message.id,
            channel: message.channel,
            recipient_phone: message.phone,
            recipient_email: message.email,
            message: message.text,
            attachments: message.attachments,
            metadata: message.metadata,
        };
        let mut lines = self.0.lock().expect("no holder of this lock panics");
        let mut text = if lines.is_broken { b"\n".to_vec() } else { vec![] };
        serde_json::to_writer(&mut text, &line).expect("a line is JSON");
        text.push(b'\n');
        match lines.file.write(&text) {
            Ok(written) => {
                lines.is_broken = written < text.len();
                if lines.is_broken {
                    Err(unknown("sends.jsonl took a part of the line"))
                } else {
                    Ok(Receipt::default())
                }
            }
            Err(error) => Err(refused(format!("sends.jsonl: {error}"))),
        }
    }
}
