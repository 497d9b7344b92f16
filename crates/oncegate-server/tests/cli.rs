//! The command line: tables for people, JSON for programs, data on standard output and talk on standard
//! error, and an exit status that says which it was.

mod support;

use serde_json::{Value, json};
use support::{Home, claim_of, with};

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
async fn what_is_not_there_is_exit_3_and_what_is_not_right_exit_2() {
    let home = Home::new();
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
