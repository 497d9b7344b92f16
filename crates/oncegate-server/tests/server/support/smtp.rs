//! A real mail server (aiosmtpd), which behaves as the text asks.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// Prints its port, then a line of JSON for each complete mail.
const SERVER: &str = r##"
import asyncio, json
from aiosmtpd.smtp import SMTP

class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody@"):
            return "550 no such user"
        if address.startswith("busy@"):
            return "450 try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        text = envelope.content.decode("utf-8", "replace")
        print(json.dumps({"to": envelope.rcpt_tos, "from": envelope.mail_from, "text": text}), flush=True)
        if "#refuse" in text:
            return "554 we do not like it"
        if "#cut" in text:
            server.transport.abort()
            await asyncio.sleep(3600)
        if "#hang" in text:
            await asyncio.sleep(3600)
        return "250 taken"

async def main():
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(Handler()), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"##;

pub struct MailServer {
    child: Child,
    pub port: u16,
    mails: Arc<Mutex<Vec<Value>>>,
}

impl MailServer {
    pub fn start() -> MailServer {
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", SERVER])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3-aiosmtpd is installed: run make test");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let port = lines.next().expect("it says its port").expect("text").parse().expect("a port");
        let mails: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = mails.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                seen.lock().expect("no holder panics").push(serde_json::from_str(&line).expect("JSON"));
            }
        });
        MailServer { child, port, mails }
    }

    /// The mails with this text.
    pub fn mails(&self, text: &str) -> Vec<Value> {
        let mails = self.mails.lock().expect("no holder panics");
        mails.iter().filter(|mail| mail["text"].as_str().is_some_and(|whole| whole.contains(text))).cloned().collect()
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
