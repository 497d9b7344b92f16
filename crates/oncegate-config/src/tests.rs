//! What a user sees of the configuration.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use oncegate_core::{GuardName, Lost, OnStoreError, Policy};

use super::typed::{Limits, Privacy};
use super::*;

/// A folder with an `oncegate.toml` in it, loaded with variables and flags.
struct Setup {
    folder: tempfile::TempDir,
    env: Vec<(OsString, OsString)>,
    flags: Vec<Flag>,
}

impl Setup {
    fn new(file: &str) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(DEFAULT_FILE), file).unwrap();
        Setup { folder, env: Vec::new(), flags: Vec::new() }
    }

    fn env(mut self, name: &str, value: &str) -> Setup {
        self.env.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, key: &str, value: &str, name: &str) -> Setup {
        self.flags.push(Flag { key: key.into(), value: value.into(), name: name.into() });
        self
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn load(&self) -> Result<Loaded, Vec<ConfigError>> {
        Config::load_from(self.folder.path(), self.flags.clone(), self.env.clone(), None)
    }

    fn loaded(&self) -> Loaded {
        self.load().unwrap_or_else(|errors| panic!("{errors:#?}"))
    }

    /// All errors as they are printed, without the folder.
    fn errors(&self) -> Vec<String> {
        let folder = self.path("");
        let errors = self.load().err().expect("something is wrong");
        errors.iter().map(|error| error.to_string().replace(&folder, "")).collect()
    }
}

fn guard(name: &str) -> GuardName {
    GuardName::new(name).unwrap()
}

#[test]
fn a_workspace_that_may_take_all_connections_is_a_weakness() {
    let weaknesses = |toml: &str| {
        let weaknesses = Setup::new(toml).loaded().config.weaknesses();
        weaknesses.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(weaknesses(""), [""; 0]);
    let told =
        "limits.workspace.connections: one workspace may take all 2000 connections; write less than limits.connections";
    assert_eq!(weaknesses("[limits]\nconnections = 2000"), [told]);
    assert_eq!(weaknesses("[limits]\nconnections = 2000\nworkspace.connections = 500"), [""; 0]);
}

#[test]
fn without_anything_the_defaults_hold() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = Config::load_from(folder.path(), Vec::new(), Vec::new(), None).ok().unwrap();
    assert_eq!(loaded.file, None);
    let config = loaded.config;
    assert_eq!(config.listen.to_string(), "127.0.0.1:4600");
    assert_eq!(config.store.expose(), "sqlite:oncegate-data/oncegate.db");
    let workspace = WorkspaceLimits {
        connections: 2500,
        requests: 2500,
        waiters: 2000,
        followers: 64,
        lookups: 16,
        body_bytes: 64 << 20,
        answer_bytes: 48 << 20,
        claims: Some(10_000_000),
        stored_bytes: Some(16 << 30),
    };
    assert_eq!(
        config.limits,
        Limits {
            body_bytes: 1 << 20,
            event_body_bytes: 4 << 20,
            connections: 10_000,
            saga_steps: 1_000_000,
            schedules: 1000,
            schedule_interval: Duration::from_secs(60),
            rate: None,
            workspace,
        }
    );
    assert_eq!(config.tls, None);
    assert_eq!(*config.policy(&guard("any")), Policy::default());
    assert_eq!(config.privacy, Privacy { store_parts: false, store_outcome_body: true });
    assert_eq!(config.log, Log { format: LogFormat::Json, level: LogLevel::Info });
}

#[test]
fn the_embedded_store_is_in_the_data_folder_unless_it_is_said_where_it_is() {
    let moved = Setup::new("data_dir = \"elsewhere\"\n");
    let loaded = moved.loaded();
    assert_eq!(loaded.config.store.expose(), "sqlite:elsewhere/oncegate.db");
    assert!(
        loaded
            .to_toml()
            .contains(&format!("store = \"sqlite:elsewhere/oncegate.db\"  # {}:1", moved.path(DEFAULT_FILE)))
    );
    let said = Setup::new("data_dir = \"elsewhere\"\nstore = \"memory:\"\n").loaded();
    assert_eq!(said.config.store.expose(), "memory:");
}

#[test]
fn flags_go_before_the_environment_before_the_file_before_defaults() {
    let setup = Setup::new("listen = \"127.0.0.1:1\"\n[log]\nlevel = \"warn\"\nformat = \"pretty\"\n")
        .env("ONCEGATE_LISTEN", "127.0.0.1:2")
        .env("ONCEGATE_LOG_LEVEL", "debug")
        .flag("listen", "127.0.0.1:3", "--listen");
    let loaded = setup.loaded();
    assert_eq!(loaded.config.listen.port(), 3);
    assert_eq!(loaded.config.log, Log { format: LogFormat::Pretty, level: LogLevel::Debug });
    let shown = loaded.to_toml();
    for line in [
        "listen = \"127.0.0.1:3\"  # --listen".to_owned(),
        "level = \"debug\"  # ONCEGATE_LOG_LEVEL".to_owned(),
        format!("format = \"pretty\"  # {}:4", setup.path(DEFAULT_FILE)),
        "data_dir = \"oncegate-data\"  # default".to_owned(),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
}

#[test]
fn an_unknown_key_is_an_error_at_its_place_with_the_nearest_right_one() {
    for (file, error) in [
        ("lsten = 1", "oncegate.toml:1:1: there is no setting `lsten`\nhint: did you mean `listen`?"),
        ("[limit]\nbody = 1", "oncegate.toml:1:2: there is no setting `limit`\nhint: did you mean `limits`?"),
        (
            "[claims]\n  windw = \"1h\"",
            "oncegate.toml:2:3: there is no setting `claims.windw`\nhint: did you mean `claims.window`?",
        ),
        (
            "[claims.guard.a]\nlaese = \"1s\"",
            "oncegate.toml:2:1: there is no setting `claims.guard.a.laese`\nhint: did you mean `claims.guard.a.lease`?",
        ),
        ("window = \"1h\"", "oncegate.toml:1:1: there is no setting `window`\nhint: did you mean `claims.window`?"),
        (
            "claims.store_parts = true",
            "oncegate.toml:1:8: there is no setting `claims.store_parts`\nhint: did you mean `privacy.store_parts`?",
        ),
        (
            "limits = { bdy = 5 }",
            "oncegate.toml:1:12: there is no setting `limits.bdy`\nhint: did you mean `limits.body`?",
        ),
        (
            "log.colour = true",
            "oncegate.toml:1:5: there is no setting `log.colour`\nhint: in [log] there are: format, level",
        ),
        (
            "[[proxies]]\nx = 1",
            "oncegate.toml:1:3: there is no setting `proxies`\nhint: there are: listen, store, guard_store, data_dir, auth, metrics, limits, tls, claims, outgoing, messages, actions, sends, reminders, sagas, amqp, nats, workspace, privacy, log",
        ),
    ] {
        assert_eq!(Setup::new(file).errors(), [error], "{file}");
    }
}

#[test]
fn a_wrong_value_is_an_error_at_its_place_that_says_what_would_be_right() {
    for (file, error) in [
        (
            "# ä\nlisten = \"ä\"",
            "2:10: listen is \"ä\", which is not an address and port\nhint: write \"127.0.0.1:4600\"",
        ),
        (
            "claims.window = 900",
            "1:17: claims.window is an integer, not a duration\nhint: a duration is a whole number",
        ),
        ("claims.window = \"15 m\"", "1:17: claims.window is \"15 m\", which is not a duration\nhint: a duration"),
        ("claims.lease = \"2h\"", "1:16: claims.lease is 2h; the most is 1h\nhint: write something from 1ms to 1h"),
        ("claims.lease = \"0s\"", "1:16: claims.lease is 0ms; the least is 1ms\nhint: write something from"),
        ("limits.body = \"1MB\"", "1:15: limits.body is \"1MB\", which is not a size\nhint: a size is a whole number"),
        ("limits.rate = -1", "1:15: limits.rate is \"-1\", which is not a whole number\nhint: write a whole number"),
        ("limits.rate = \"5\"", "1:15: limits.rate is a string, not a whole number\nhint: write a whole number"),
        ("claims.lost = \"hlod\"", "1:15: claims.lost is \"hlod\"\nhint: did you mean \"hold\"? It is one of"),
        ("privacy.store_parts = \"yes\"", "1:23: privacy.store_parts is a string, not true or false\nhint: write true"),
        ("store = \"mysql://u:geheim@h/d\"", "1:9: store is not a store's URL\nhint: write \"sqlite:FILE\""),
        ("data_dir = \"\"", "1:12: data_dir is empty\nhint: leave it out"),
        ("claims = 5", "1:1: `claims` is a table, not a value\nhint: write [claims] and its settings below"),
        ("[[claims]]\nlease = \"1s\"", "1:3: `claims` is a table, not a value\nhint: write [claims]"),
        ("[listen]\nx = 1", "1:1: listen is a table, not an address and port\nhint: write"),
        ("[claims.guard.\"-rf\"]\nlease = \"1s\"", "1:15: a guard name is 1 to 64 characters of"),
        ("listen = ", "1:10: not TOML: "),
    ] {
        let errors = Setup::new(file).errors();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        let wanted = format!("oncegate.toml:{error}");
        assert!(errors[0].starts_with(&wanted), "wanted {wanted}\ngot    {}", errors[0]);
        assert!(errors[0].contains("\nhint: ") && !errors[0].contains("geheim"), "{}", errors[0]);
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let setup =
        Setup::new("lsten = 1\n[claims]\nwindow = 5\n[claims.guard.a]\nwindow = \"1s\"\n[log]\nlevel = \"loud\"\n")
            .env("ONCEGATE_LIMITS_BODY", "big")
            .flag("listen", "here", "--listen");
    let places: Vec<String> = setup.errors().iter().map(|error| error.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(
        places,
        [
            "oncegate.toml:1:1",
            "oncegate.toml:3:10",
            "oncegate.toml:7:9",
            "ONCEGATE_LIMITS_BODY",
            "--listen",
            // A guard's own window, against the lease of all guards.
            "oncegate.toml:5:10",
        ]
    );
}

#[test]
fn a_lease_is_no_longer_than_its_window() {
    let general = Setup::new("[claims]\nwindow = \"10s\"\n").errors();
    assert_eq!(
        general,
        ["oncegate.toml:2:10: the lease of [claims] (30s) is longer than its window (10s)\n\
          hint: write lease = \"10s\" or less, or a longer window"]
    );
    let own = Setup::new("[claims]\nwindow = \"1m\"\n[claims.guard.\"a:b\"]\nlease = \"2m\"\n").errors();
    assert!(own[0].starts_with("oncegate.toml:4:9: the lease of [claims.guard.\"a:b\"] (2m)"), "{own:?}");
    Setup::new("[claims]\nwindow = \"10s\"\nlease = \"10s\"\n").loaded();
}

#[test]
fn a_guard_takes_what_it_does_not_say_from_all_claims() {
    let setup = Setup::new(
        "privacy.store_parts = true\n[claims]\nlost = \"hold\"\n[claims.guard.\"v1.send\"]\nwindow = \"365d\"\nstore_error = \"open\"\nstore_parts = false\n",
    );
    let config = setup.loaded().config;
    let general = Policy { lost: Lost::Hold, store_parts: true, ..Policy::default() };
    assert_eq!(*config.policy(&guard("other")), general);
    assert_eq!(
        *config.policy(&guard("v1.send")),
        Policy {
            window: Duration::from_secs(365 * 24 * 3600),
            on_store_error: OnStoreError::Open,
            store_parts: false,
            ..general
        }
    );
}

#[test]
fn an_unknown_variable_is_an_error_with_the_nearest_right_one() {
    for (name, hint) in [
        ("ONCEGATE_LISTN", "did you mean ONCEGATE_LISTEN?"),
        ("ONCEGATE_STOR_FILE", "did you mean ONCEGATE_STORE_FILE?"),
        ("ONCEGATE_CLAIM_WINDOW", "did you mean ONCEGATE_CLAIMS_WINDOW?"),
        ("ONCEGATE_CLAIMS_GUARD_A_WINDOW", "set it in the file, under [claims.guard.NAME]"),
    ] {
        let errors = Setup::new("").env(name, "x").errors();
        assert_eq!(errors, [format!("{name}: there is no such variable\nhint: {hint}")]);
    }
    for name in ["ONCEGATE_KEY", "ONCEGATE_URL"] {
        let errors = Setup::new("").env(name, "x").errors();
        assert!(errors[0].starts_with(&format!("{name}: there is no such variable")), "{errors:?}");
    }
    Setup::new("").env("ONCEGATE_TEST_X", "x").env("X", "x").loaded();
}

#[test]
fn what_kubernetes_says_of_a_service_named_oncegate_is_no_setting() {
    for (name, value) in [
        ("ONCEGATE_SERVICE_HOST", "10.0.0.1"),
        ("ONCEGATE_SERVICE_PORT", "4600"),
        ("ONCEGATE_SERVICE_PORT_HTTP", "4600"),
        ("ONCEGATE_PORT", "tcp://10.0.0.1:4600"),
        ("ONCEGATE_PORT_4600_TCP", "tcp://10.0.0.1:4600"),
        ("ONCEGATE_PORT_4600_TCP_PROTO", "tcp"),
        ("ONCEGATE_PORT_4600_TCP_PORT", "4600"),
        ("ONCEGATE_PORT_4600_TCP_ADDR", "10.0.0.1"),
        ("ONCEGATE_INSIDE_SERVICE_HOST", "10.0.0.1"),
        ("ONCEGATE_INSIDE_PORT_4600_TCP", "tcp://10.0.0.1:4600"),
    ] {
        let loaded = Setup::new("").env(name, value).loaded();
        assert_eq!(loaded.config.listen.to_string(), "127.0.0.1:4600", "{name}");
    }
    for (name, value) in [("ONCEGATE_PORT", "4600"), ("ONCEGATE_PORT_NUMBER", "4600")] {
        let errors = Setup::new("").env(name, value).errors();
        assert!(errors[0].starts_with(&format!("{name}: there is no such variable")), "{errors:?}");
    }
}

#[test]
fn a_variable_can_name_a_file_that_holds_the_value() {
    let setup = Setup::new("");
    let secret = setup.path("secret");
    std::fs::write(&secret, "postgres://u:geheim@h/db\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let setup = setup.env("ONCEGATE_STORE_FILE", &secret);
    let loaded = setup.loaded();
    assert_eq!(loaded.config.store.expose(), "postgres://u:geheim@h/db");
    assert!(loaded.to_toml().contains("store = \"postgres://u:***@h/db\"  # ONCEGATE_STORE_FILE"));

    let both = setup.env("ONCEGATE_STORE", "sqlite:x").errors();
    assert_eq!(both, ["ONCEGATE_STORE_FILE: ONCEGATE_STORE is set as well\nhint: run: unset ONCEGATE_STORE"]);
    let missing = Setup::new("").env("ONCEGATE_STORE_FILE", "/nowhere/at/all").errors();
    assert!(missing[0].starts_with("ONCEGATE_STORE_FILE: /nowhere/at/all cannot be read: "), "{missing:?}");
}

#[test]
fn a_file_that_is_named_has_to_be_there() {
    let missing = Setup::new("").env("ONCEGATE_CONFIG", "/nowhere/at/all.toml").errors();
    assert!(missing[0].starts_with("/nowhere/at/all.toml: cannot be read: "), "{missing:?}");

    let setup = Setup::new("[log]\nlevel = \"warn\"\n");
    let named = setup.path("other.toml");
    std::fs::write(&named, "[log]\nlevel = \"trace\"\n").unwrap();
    let setup = setup.env("ONCEGATE_CONFIG", &named);
    assert_eq!(setup.loaded().config.log.level, LogLevel::Trace);
    let flag = Some(setup.folder.path().join(DEFAULT_FILE));
    let loaded = Config::load_from(setup.folder.path(), Vec::new(), setup.env.clone(), flag).ok().unwrap();
    assert_eq!(loaded.config.log.level, LogLevel::Warn);
}

#[test]
fn no_secret_is_shown_or_repeated() {
    let loaded = Setup::new("store = \"postgres://u:geheim@h/db?password=geheim\"\n").loaded();
    for shown in [loaded.to_toml(), loaded.to_json().to_string(), format!("{:?}", loaded.config)] {
        assert!(shown.contains("u:***@h/db") && !shown.contains("geheim"), "{shown}");
    }
    let broken = Setup::new("store = \"postgres://u:geheim@h/db\n").env("ONCEGATE_STORE", "u:geheim@h").errors();
    assert_eq!(broken.len(), 2);
    assert!(broken.iter().all(|error| !error.contains("geheim")), "{broken:?}");
}

#[test]
fn what_is_shown_is_a_file_that_means_the_same() {
    let first = Setup::new(
        "listen = \"[::1]:80\"\nlimits = { body = 2000, rate = 7 }\n[claims]\nlease = \"1500ms\"\nlost = \"hold\"\n\
         [claims.guard.\"b.c\"]\nlost = \"take_over\"\nwindow = \"3d\"\n[claims.guard.a]\nlease = \"90s\"\n",
    )
    .loaded();
    let shown = first.to_toml();
    let second = Setup::new(&shown).loaded();
    assert_eq!(first.config, second.config, "{shown}");
    let values =
        |shown: &str| shown.lines().map(|line| line.split("  # ").next().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(values(&shown), values(&second.to_toml()));
    let json = first.to_json();
    let rate = json.as_array().unwrap().iter().find(|setting| setting["key"] == "limits.rate").unwrap();
    assert_eq!(rate["value"], 7);
    assert!(json.as_array().unwrap().iter().any(|setting| setting["key"] == "claims.guard.\"b.c\".window"));
}

#[test]
fn a_flag_for_a_guard_is_read_like_a_key_and_checked_like_one() {
    let loaded = Setup::new("").flag("claims.guard.\"a.b\".lease", "5s", "--set").loaded();
    assert_eq!(loaded.config.policy(&guard("a.b")).lease, Duration::from_secs(5));
    for (key, start) in [
        ("claims.guard.-a.lease", "--set: a guard name is"),
        ("claim.lease", "--set: there is no setting `claim.lease`\nhint: did you mean `claims.lease`?"),
        ("", "--set: there is no setting"),
    ] {
        let errors = Setup::new("").flag(key, "5s", "--set").errors();
        assert!(errors[0].starts_with(start), "{errors:?}");
    }
}

#[test]
fn sagas_and_queues_are_lists() {
    let file = "[sagas]\nfiles = [\"a.toml\", \"b, c.toml\"]\nretry_ms = [1, 20]\n[amqp]\nurl = \"amqp://me:geheim@broker/%2f\"\n\
                [[amqp.consume]]\nqueue = \"one\"\n[[amqp.consume]]\nqueue = \"two\"\nworkspace = \"other\"\nprefetch = 7\n\
                [actions.type.X]\nhandler = \"amqp\"\nexchange = \"commands\"\n[actions.type.Y]\nhandler = \"saga\"\n\
                [nats]\nurl = \"nats://me:geheim@h:4222\"\n[[nats.consume]]\nstream = \"S\"\n[actions.type.Z]\nhandler = \"nats\"\nsubject = \"z\"\n";
    let loaded = Setup::new(file).loaded();
    let Config { sagas, amqp, actions, .. } = &loaded.config;
    assert_eq!(sagas.files, [PathBuf::from("a.toml"), PathBuf::from("b, c.toml")]);
    assert_eq!(sagas.retries, [Duration::from_millis(1), Duration::from_millis(20)]);
    let consume: Vec<_> =
        amqp.consume.iter().map(|one| (one.queue.as_str(), one.workspace.as_str(), one.prefetch)).collect();
    assert_eq!(consume, [("one", "default", 32), ("two", "other", 7)]);
    let handler = |name: &str| actions.types[name].handler.clone();
    assert_eq!(handler("X"), Some(HandlerKind::Amqp { exchange: "commands".into(), routing_key: None }));
    assert_eq!(handler("Y"), Some(HandlerKind::Saga { event: None }));
    assert_eq!(handler("Z"), Some(HandlerKind::Nats { subject: Some("z".into()) }));
    let stream = &loaded.config.nats.consume[0];
    assert_eq!(
        (stream.stream.as_str(), stream.durable.as_str(), stream.workspace.as_str()),
        ("S", "oncegate", "default")
    );
    let shown = loaded.to_toml();
    assert!(!shown.contains("geheim") && shown.contains("amqp://me:***@broker/%2f"), "{shown}");
    // The shown configuration can be read again, except for hidden values.
    let again = Setup::new(&shown.replace("***", "geheim")).loaded();
    assert_eq!(again.config, loaded.config);
    assert_eq!(Setup::new("").loaded().config.sagas.retries.len(), 3);
}

#[test]
fn what_is_wrong_with_queues_is_said_where_it_is() {
    let said = |file: &str| Setup::new(file).errors().join("\n");
    assert!(said("[amqp.consume]\nqueue = \"one\"\n").contains("write [[amqp.consume]]"));
    assert!(said("[[amqp.consume]]\n").contains("there is nothing in [[amqp.consume]]"));
    assert!(said("[[amqp.consume]]\nqueue = \"one\"\n").contains("[amqp] has no `url`"));
    assert!(said("[amqp]\nurl = \"amqp://h\"\n[[amqp.consume]]\nprefetch = 1\n").contains("has no `queue`"));
    assert!(
        said("[amqp]\nurl = \"amqp://h\"\n[[amqp.consume]]\nqueu = \"x\"\n")
            .contains("did you mean `amqp.consume.1.queue`?")
    );
    for url in ["http://h", "amqp://[::1]/%2f", "amqp://h/%2f?heartbeat=abc", "geheim"] {
        let said = said(&format!("[amqp]\nurl = {url:?}\n"));
        assert!(said.contains("oncegate.toml:2:7: amqp.url is no broker's URL") && !said.contains("geheim"), "{said}");
    }
    assert!(said("[actions.type.X]\nhandler = \"amqp\"\n").contains("[amqp] has no `url`"));
    assert!(said("[actions.type.X]\nhandler = \"saga\"\nurl = \"http://h\"\n").contains("means nothing to \"saga\""));
    assert!(said("[[nats.consume]]\nstream = \"S\"\n").contains("[nats] has no `url`"));
    assert!(said("[nats]\nurl = \"nats://h\"\n[[nats.consume]]\ndurable = \"d\"\n").contains("has no `stream`"));
    assert!(said("[nats]\nurl = \"nats://h:geheim\"\n").contains("nats.url is no server's URL"));
    assert!(said("[sagas]\nretry_ms = [\"soon\"]\n").contains("a list of milliseconds"));
    assert!(said("[sagas]\nfiles = \"a.toml\"\n").contains("a list of texts"));
}
