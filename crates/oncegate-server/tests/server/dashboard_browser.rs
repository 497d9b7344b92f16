//! The dashboard in Chromium: each file of `browser/` beside a server of its own.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Home, SEARCH_IMPORT, collect, wait};

/// The time-out of one file. The tests in it time out earlier, and report what they waited for.
const WITHIN: Duration = Duration::from_secs(180);

/// Runs the tests of one file, in the server's folder, and prints their output if one of them fails.
fn passes(file: &str, home: &Home, address: Option<SocketAddr>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    assert!(folder.join("node_modules").exists(), "run scripts/install");
    let mut child = Command::new("node")
        .args(["--test", "--test-timeout=150000", "--test-reporter=spec"])
        .arg(folder.join(file))
        .current_dir(home.path())
        .env("DASHBOARD_URL", address.map_or(String::new(), |address| format!("http://{address}")))
        .env("DASHBOARD_PROGRAM", env!("CARGO_BIN_EXE_oncegate"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("node is installed: run make test");
    let said = [collect(child.stdout.take().expect("piped")), collect(child.stderr.take().expect("piped"))];
    let status = wait(&mut child, WITHIN);
    let said: String = said.map(|reader| reader.join().expect("output is read to its end")).concat();
    assert!(status.success(), "{said}");
}

/// On a demo, which has data of every kind, and creates more.
fn on_a_demo(file: &str) {
    let home = Home::new();
    let demo = home.demo();
    passes(file, &home, Some(demo.address));
}

/// A carrier that accepts a request, and closes the connection without an answer.
fn cut_off() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            // The content does not matter.
            let _ = connection.and_then(|mut connection| connection.read(&mut [0; 4096]));
        }
    });
    address
}

/// On a server with only the data of the test, with the names and times of the demo. Only a carrier exists; other receivers do not.
fn on_a_server(file: &str) {
    let cut_off = cut_off();
    let home = Home::with_config(&format!(
        r#"
[privacy]
store_parts = true
[claims.guard.payout]
lost = "hold"
[sends]
lost = "hold"
[reminders]
grace = "6s"
[outgoing]
allow = ["127.0.0.1"]
[actions.type."crm:export"]
handler = "webhook"
url = "http://127.0.0.1:1/"
max_attempts = 1
[messages.channel.sms]
kind = "http"
url = "http://127.0.0.1:1/"
[messages.channel.cut-off]
kind = "http"
url = "http://{cut_off}/"
[sagas]
files = [{SEARCH_IMPORT:?}]
"#
    ));
    let server = home.serve();
    passes(file, &home, Some(server.address));
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn every_page_is_readable_in_every_size_and_scheme() {
    on_a_demo("pages.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn every_button_asks_for_a_reason_and_does_what_it_says() {
    on_a_demo("buttons.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn a_keyboard_is_enough() {
    on_a_demo("keyboard.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn every_page_works_with_scripts_blocked() {
    on_a_demo("scripts_blocked.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn a_page_that_is_open_is_kept_up_to_date_and_comes_back_with_the_server() {
    // The test starts and stops servers itself.
    passes("live.test.mjs", &Home::new(), None);
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn one_field_finds_whatever_has_a_name() {
    on_a_demo("search.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn the_book_is_read_and_searched_on_a_desk_on_a_phone_and_on_paper() {
    on_a_server("book.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn where_there_are_keys_one_logs_in_and_may_do_what_the_key_may() {
    on_a_server("keys.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn no_page_of_another_origin_changes_anything() {
    on_a_server("other_origins.test.mjs");
}

#[test]
#[ignore = "needs Chromium and Node: run make test"]
fn a_text_that_would_like_to_be_html_stays_a_text() {
    on_a_server("texts.test.mjs");
}
