//! The command line: tables for people, JSON for programs, data on standard output and messages on standard
//! error, and a different exit status for each outcome.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::{Home, PATIENCE, Raw, claim_of, eventually, with};

const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[tokio::test]
async fn claims_are_listed_and_shown_to_people_and_to_programs() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (done, token) = client.win(&with(claim_of("mail", "order 17"), json!({"attributes": {"a": 1}}))).await;
    client.settle("mail", &done, token, &json!({"sent": true})).await.expect(200);
    let (flying, _) = client.win(&claim_of("pay", "order 17")).await;

    let table = home.run(["claims", "list"]).expect_code(0).stdout;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("ID") || lines[0].trim_start().starts_with("ID"), "{table}");
    assert!(lines[1].contains(&flying) && lines[1].contains("in_flight"), "{table}");
    assert!(lines[2].contains(&done) && lines[2].contains("done") && lines.len() == 3, "{table}");

    let list = |more: &[&str]| home.run([&["claims", "list", "--json"], more].concat()).expect_code(0).json();
    let from_api = client.get("/api/claims").await.expect(200).body;
    assert_eq!(list(&[]), from_api);
    assert_eq!(list(&["--guard", "mail"])["items"][0]["id"], json!(done));
    assert_eq!(list(&["--state", "in_flight"])["items"][0]["id"], json!(flying));
    assert_eq!(list(&["--workspace", "other"])["items"], json!([]));
    let first = list(&["--limit", "1"]);
    assert_eq!(first["items"][0]["id"], json!(flying));
    let second = list(&["--limit", "1", "--cursor", first["nextCursor"].as_str().unwrap()]);
    assert_eq!(second["items"][0]["id"], json!(done));

    let shown = home.run(["claims", "show", &done, "--guard", "mail", "--json"]).expect_code(0).json();
    assert_eq!(shown, client.show("mail", &done).await.body);
    let people = home.run(["claims", "show", &done, "--guard", "mail"]).expect_code(0).stdout;
    assert!(people.contains("state") && people.contains("done") && people.contains(&done), "{people}");
    let found = home.run(["claims", "find", "order 17", "--guard", "mail", "--json"]).expect_code(0).json();
    assert_eq!(found, shown);
}

#[tokio::test]
async fn a_claim_is_forgotten_and_the_next_caller_wins() {
    let home = Home::new();
    let server = home.serve();
    let (id, _) = server.client().win(&claim_of("g", "k")).await;
    let ran = home.run(["claims", "forget", &id, "--guard", "g", "--note", "a test"]).expect_code(0);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("forgotten") && ran.stderr.contains("a test"), "{ran:?}");
    server.client().win(&claim_of("g", "k")).await;
}

#[tokio::test]
async fn a_claim_is_shown_whatever_json_a_caller_stored_with_it() {
    let home = Home::new();
    let server = home.serve();
    for (key, attributes) in [("number", r#"{"a":1e999}"#), ("string", r#"{"a":"\ud800"}"#)] {
        let body = format!(r#"{{"guard":"g","key":["{key}"],"fingerprint":"f-1","attributes":{attributes}}}"#);
        let mut raw = Raw::connect(server.address).await;
        raw.post_head(&format!("content-length: {}\r\nconnection: close", body.len())).await;
        raw.write(body.as_bytes()).await;
        let answer = raw.read_to_close(PATIENCE).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        let found = |more: &[&str]| home.run([&["claims", "find", key, "--guard", "g"], more].concat()).expect_code(0);
        let people = found(&[]).stdout;
        let line = |name: &str| people.lines().find(|line| line.trim_start().starts_with(name)).map(str::to_owned);
        assert!(line("attributes").is_some_and(|line| line.contains(attributes)), "{people}");
        assert!(line("fingerprint").is_some_and(|line| line.ends_with(" f-1")), "{people}");
        assert!(people.find("workspace") < people.find("attributes"), "{people}");
        assert!(found(&["--json"]).stdout.contains(attributes));
    }
}

#[tokio::test]
async fn a_claim_is_found_by_a_key_with_an_absent_part() {
    let home = Home::new();
    let server = home.serve();
    let (id, _) = server.client().win(&json!({"guard": "g", "key": ["a", null]})).await;
    let find = |key: &[&str]| home.run([&["claims", "find", "--guard", "g", "--json"], key].concat());
    assert_eq!(find(&["--json-key", r#"["a",null]"#]).expect_code(0).json()["id"], json!(id));
    for other in [&["--json-key", r#"["a"]"#][..], &["--json-key", r#"["a","null"]"#], &["a", "null"], &["a", ""]] {
        find(other).expect_failure(3, "no claim", "oncegate claims list");
    }
    for wrong in
        [&["--json-key", "[]"][..], &["--json-key", "[1]"], &["--json-key", "a"], &["a", "--json-key", "[null]"]]
    {
        assert!(find(wrong).expect_code(2).stdout.is_empty(), "{wrong:?}");
    }
}

#[tokio::test]
async fn what_was_done_is_said_to_programs_too() {
    let home = Home::with_config("[claims]\nlost = \"hold\"\n");
    let server = home.serve();
    let json = |arguments: &[&str]| home.run([arguments, &["--json"]].concat()).expect_code(0).json();
    let (id, _) = server.client().win(&claim_of("g", "k")).await;
    let forgotten = json(&["claims", "forget", &id, "--guard", "g", "--note", "why"]);
    assert_eq!((&forgotten["id"], &forgotten["done"]), (&json!(id), &json!("forgotten")));
    assert_eq!((&forgotten["guard"], &forgotten["note"]), (&json!("g"), &json!("why")));

    let (lost, _) = server.client().win(&with(claim_of("g", "lost"), json!({"leaseSeconds": 0.001}))).await;
    eventually("the owner counts as dead", async || {
        let shown = home.run(["claims", "show", &lost, "--guard", "g", "--json"]).expect_code(0).json();
        (shown["state"] == "unknown").then_some(())
    })
    .await;
    let resolved = json(&["claims", "resolve", &lost, "--guard", "g", "--as", "done"]);
    assert_eq!((&resolved["id"], &resolved["done"]), (&json!(lost), &json!("resolved as done")));
    assert_eq!(resolved["note"], json!(null));

    for created in [true, false] {
        assert_eq!(json(&["workspace", "create", "acme"]), json!({"name": "acme", "created": created}));
    }
    let (key, _) = home.make_key("acme", "send");
    assert_eq!(json(&["key", "revoke", &key]), json!({"id": key, "revoked": true}));
    assert_eq!(json(&["config", "check"]), json!({"file": "oncegate.toml", "right": true}));
}

#[test]
fn a_store_that_is_not_there_is_made_only_by_what_writes_to_it() {
    let home = Home::new();
    let named = ["--guard", "g"];
    let looking: &[&[&str]] = &[
        &["claims", "list"],
        &[&["claims", "show", NOTHING][..], &named].concat(),
        &[&["claims", "find", "k"][..], &named].concat(),
        &[&["claims", "forget", NOTHING][..], &named].concat(),
        &[&["claims", "resolve", NOTHING, "--as", "done"][..], &named].concat(),
        &["workspace", "list"],
        &["key", "list"],
        &["key", "revoke", "x"],
    ];
    for arguments in looking {
        let ran = home.run(*arguments).expect_failure(3, "there is no store at oncegate-data/oncegate.db", "serve");
        assert!(ran.stdout.is_empty() && ran.stderr.contains("--store"), "{ran:?}");
    }
    let findings = home.run(["doctor", "--json"]).expect_code(0).json();
    let store = findings.as_array().unwrap().iter().find(|finding| finding["check"] == "store").unwrap();
    assert_eq!(store["verdict"], "warning", "{findings}");
    assert!(store["detail"].as_str().unwrap().contains("there is no store"), "{findings}");
    home.run_with(["doctor"], &[("ONCEGATE_LISTEN", "0.0.0.0:4600")]).expect_failure(1, "went wrong", "");
    assert!(!home.path().join("oncegate-data").exists());

    for writing in [&["migrate"][..], &["workspace", "create", "acme"], &["key", "create", "--workspace", "default"]] {
        let home = Home::new();
        home.run(writing).expect_code(0);
        home.run(["workspace", "list"]).expect_code(0);
    }
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let home = Home::new();
    home.run(["migrate"]).expect_code(0);
    for arguments in [&["config", "show"][..], &["workspace", "list", "--json"], &["doctor"], &["completions", "bash"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = run_into(&home, arguments, writer);
        assert!(ran.status.success() && ran.stderr.is_empty(), "{arguments:?}: {ran:?}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = run_into(&home, &["config", "show"], full);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("cannot write the output"), "{ran:?}");
}

/// Runs a command to its end, with the given standard output.
fn run_into(home: &Home, arguments: &[&str], stdout: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(arguments).current_dir(home.path()).env_clear().stdout(stdout).output().expect("the binary was built")
}

#[test]
fn a_note_is_at_most_a_kibibyte() {
    let home = Home::new();
    home.run(["migrate"]).expect_code(0);
    for verb in [&["forget", NOTHING][..], &["resolve", NOTHING, "--as", "done"]] {
        let noted = |note: &str| home.run([&["claims"], verb, &["--guard", "g", "--note", note]].concat());
        noted(&"x".repeat(1024)).expect_code(3);
        let refused = noted(&"x".repeat(1025)).expect_code(2);
        assert!(refused.stderr.contains("--note is at most 1024 bytes"), "{refused:?}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_exit_3_and_what_is_not_right_exit_2() {
    let home = Home::new();
    home.run(["migrate"]).expect_code(0);
    let hint = "oncegate claims list --workspace default --guard g";
    let message = format!("no claim {NOTHING} of guard g in workspace default");
    for verb in [&["show", NOTHING][..], &["forget", NOTHING], &["resolve", NOTHING, "--as", "done"]] {
        home.run([&["claims"], verb, &["--guard", "g"]].concat()).expect_failure(3, &message, hint);
    }
    home.run(["claims", "find", "k", "--guard", "g"]).expect_failure(3, "no claim", hint);
    home.run(["key", "revoke", "nothing"]).expect_failure(3, "no live key", "oncegate key list");
    home.run(["key", "create", "--workspace", "nowhere"]).expect_failure(
        3,
        "no workspace",
        "oncegate workspace create nowhere",
    );

    let usage: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["claims", "show", NOTHING],
        &["claims", "show", "not-an-id", "--guard", "g"],
        &["claims", "show", NOTHING, "--guard", "no good"],
        &["claims", "list", "--limit", "0"],
        &["claims", "list", "--limit", "501"],
        &["claims", "list", "--state", "gone"],
        &["claims", "list", "--cursor", "nonsense"],
        &["claims", "list", "--workspace", "no good"],
        &["claims", "find", "--guard", "g"],
        &["claims", "resolve", NOTHING, "--guard", "g", "--as", "maybe"],
        &["workspace", "create", "no good"],
        &["key", "create", "--workspace", "default", "--role", "king"],
        &["serve", "--listen", "nowhere"],
        &["claims", "list", "--store", "mysql://x"],
    ];
    for arguments in usage {
        let ran = home.run(*arguments).expect_code(2);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn workspaces_and_keys_are_made_listed_and_revoked() {
    let home = Home::new();
    let made = home.run(["workspace", "create", "acme"]).expect_code(0);
    assert!(made.stdout.is_empty() && made.stderr.contains("created"), "{made:?}");
    let again = home.run(["workspace", "create", "acme"]).expect_code(0);
    assert!(again.stderr.contains("already"), "{again:?}");
    let workspaces = home.run(["workspace", "list", "--json"]).expect_code(0).json();
    assert!(workspaces.as_array().unwrap().iter().any(|workspace| workspace["name"] == "acme"), "{workspaces}");
    assert!(home.run(["workspace", "list"]).expect_code(0).stdout.contains("acme"));

    let key = home.run(["key", "create", "--workspace", "acme"]).expect_code(0);
    assert!(key.stdout.starts_with("og_") && key.stdout.lines().count() == 1, "{key:?}");
    let made = home.run(["key", "create", "--workspace", "acme", "--role", "admin", "--json"]).expect_code(0).json();
    let id = made["id"].as_str().unwrap();
    assert_eq!((&made["workspace"], &made["role"]), (&json!("acme"), &json!("admin")));
    assert!(made["key"].as_str().unwrap().starts_with(&format!("og_{id}_")));
    home.run(["key", "revoke", id]).expect_code(0);
    home.run(["key", "revoke", id]).expect_failure(3, "no live key", "oncegate key list");
    let keys = home.run(["key", "list", "--json"]).expect_code(0).json();
    let keys = keys.as_array().unwrap();
    assert_eq!(keys.len(), 2);
    let revoked = |key: &&Value| key["id"] == json!(id) && key["revokedAt"].is_string() && key["createdAt"].is_string();
    assert_eq!(keys.iter().filter(revoked).count(), 1, "{keys:?}");
    assert!(home.run(["key", "list"]).expect_code(0).stdout.contains("REVOKED"));
}

#[test]
fn the_doctor_finds_nothing_wrong_with_a_good_store_and_says_what_is_with_a_bad_one() {
    let home = Home::new();
    home.run(["migrate"]).expect_code(0);
    let good = home.run(["doctor", "--json"]).expect_code(0).json();
    assert!(good.as_array().unwrap().iter().all(|finding| finding["verdict"] == "ok"), "{good}");
    let checks: Vec<_> = good.as_array().unwrap().iter().map(|finding| finding["check"].as_str().unwrap()).collect();
    assert_eq!(checks, ["configuration", "store", "clock", "access"]);
    assert!(home.run(["doctor"]).expect_code(0).stdout.contains("SQLite"));

    std::fs::write(home.path().join("garbage.db"), "this is no database, and long enough to be sure of it".repeat(100))
        .unwrap();
    for store in ["sqlite:garbage.db", "sqlite:oncegate.toml/x.db", "postgres://nobody@127.0.0.1:1/none"] {
        let bad =
            home.run(["doctor", "--store", store, "--json"]).expect_failure(1, "went wrong", "oncegate config show");
        let found = bad.json();
        let store_finding = found.as_array().unwrap().iter().find(|finding| finding["check"] == "store").unwrap();
        assert_eq!(store_finding["verdict"], "wrong", "{store}: {found}");
        home.run(["claims", "list", "--store", store]).expect_failure(1, "", "");
    }
    let exposed = home.run_with(["doctor"], &[("ONCEGATE_LISTEN", "0.0.0.0:4600")]);
    exposed.expect_failure(1, "went wrong", "oncegate config show");
}

#[test]
fn a_dry_run_shows_what_migrating_would_do_and_does_nothing() {
    let home = Home::new();
    let dry = home.run(["migrate", "--dry-run"]).expect_code(0);
    assert!(dry.stdout.contains("pending") && dry.stdout.contains("CREATE TABLE"), "{dry:?}");
    assert!(dry.stderr.contains("oncegate migrate applies them"), "{dry:?}");
    assert!(!home.path().join("oncegate-data").exists());
    let steps = home.run(["migrate", "--dry-run", "--json"]).expect_code(0).json();
    assert!(steps.as_array().unwrap().iter().all(|step| step["applied"] == false));

    assert!(home.run(["migrate"]).expect_code(0).stdout.contains("applied now"));
    assert!(home.run(["migrate"]).expect_code(0).stdout.contains("was applied"));
    let after = home.run(["migrate", "--dry-run", "--json"]).expect_code(0);
    assert!(after.json().as_array().unwrap().iter().all(|step| step["applied"] == true), "{after:?}");
    assert!(after.stderr.is_empty(), "{after:?}");
}

#[test]
fn a_wrong_key_in_the_configuration_is_said_with_its_place_and_the_nearest_right_one() {
    let home = Home::with_config("listen = \"127.0.0.1:4600\"\n[claims]\n  windw = \"15m\"\n");
    for command in [&["config", "check"][..], &["claims", "list"], &["serve"]] {
        home.run(command).expect_failure(2, "oncegate.toml:3:3", "claims.window");
    }
    home.configure("[claims]\nwindow = \"15 minutes\"\n");
    home.run(["config", "check"]).expect_failure(2, "oncegate.toml:2:10", "");
    home.configure("[claims]\nwindow = \"15m\"\n");
    home.run(["config", "check"]).expect_code(0);
    home.run(["config", "check", "--config", "missing.toml"]).expect_failure(2, "missing.toml", "");
    home.run_with(["config", "check"], &[("ONCEGATE_LISTN", "x")]).expect_failure(
        2,
        "ONCEGATE_LISTN",
        "ONCEGATE_LISTEN",
    );
}

#[test]
fn the_configuration_in_effect_is_shown_with_where_it_came_from_and_no_password() {
    let home = Home::with_config("[claims]\nwindow = \"15m\"\n[claims.guard.mail]\nlost = \"hold\"\n");
    let variables = [("ONCEGATE_STORE", "postgres://me:hunter2@db/x"), ("ONCEGATE_LOG_LEVEL", "debug")];
    let shown = home.run_with(["config", "show", "--log", "pretty"], &variables).expect_code(0).stdout;
    assert!(!shown.contains("hunter2"), "{shown}");
    let from = |value: &str, source: &str| shown.lines().any(|line| line.starts_with(value) && line.contains(source));
    assert!(from("window = \"15m\"", "oncegate.toml:2"), "{shown}");
    assert!(from("level = \"debug\"", "ONCEGATE_LOG_LEVEL"), "{shown}");
    assert!(from("format = \"pretty\"", "--log"), "{shown}");
    assert!(from("lease = \"30s\"", "default"), "{shown}");
    assert!(shown.contains("[claims.guard.mail]"), "{shown}");
    let json = home.run_with(["config", "show", "--json"], &variables).expect_code(0);
    assert!(json.json().as_array().unwrap().iter().any(|setting| setting["key"] == "claims.window"));
    assert!(!json.stdout.contains("hunter2"));
}

#[test]
fn it_says_its_version_and_completes_itself() {
    let home = Home::new();
    let version = home.run(["--version"]).expect_code(0).stdout;
    assert_eq!(version.trim(), format!("oncegate {}", env!("CARGO_PKG_VERSION")));
    assert!(home.run(["--help"]).expect_code(0).stdout.contains("serve"));
    for shell in ["bash", "zsh", "fish"] {
        let script = home.run(["completions", shell]).expect_code(0).stdout;
        assert!(script.contains("oncegate") && script.len() > 1000, "{shell}");
    }
}
