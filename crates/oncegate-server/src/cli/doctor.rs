//! `oncegate doctor`: what is wrong, and what to do about it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use oncegate::store::{Clock, MainStore, SystemClock};
use serde_json::json;

use oncegate_config::{Loaded, Weakness};
use oncegate_http::auth::mark;
use oncegate_http::stores::open_existing;
use oncegate_http::stores::open_existing_guards;
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, table};

/// The difference between the store's clock and this machine's above which a warning is printed. (Nothing depends on the difference:
/// windows
/// and leases use the store's clock.)
const SKEW_MAX: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct Command {
    #[command(flatten)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Warning,
    Bad,
}

struct Finding {
    verdict: Verdict,
    what: &'static str,
    detail: String,
}

pub async fn run(command: Command, loaded: &Loaded) -> Result<(), Failure> {
    let mut findings = vec![configuration(loaded)];
    let weak =
        |weakness: Weakness| Finding { verdict: Verdict::Warning, what: "encryption", detail: weakness.to_string() };
    findings.extend(loaded.config.weaknesses().into_iter().map(weak));
    match open_existing(&loaded.config).await {
        Ok(store) => {
            findings.extend(examine(&*store, loaded).await);
            store.close().await;
        }
        Err(failure) if failure.is_not_found() => {
            // The server creates it, and a new store has no keys.
            let detail = format!("{} yet; oncegate serve makes it", failure.message);
            findings.push(Finding { verdict: Verdict::Warning, what: "store", detail });
            findings.push(access(0, false, loaded));
        }
        Err(failure) => findings.push(Finding { verdict: Verdict::Bad, what: "store", detail: failure.message }),
    }
    findings.extend(guards(loaded).await);
    let word = |finding: &Finding| match finding.verdict {
        Verdict::Good => "ok",
        Verdict::Warning => "warning",
        Verdict::Bad => "wrong",
    };
    let view: Vec<_> = findings
        .iter()
        .map(|finding| json!({"check": finding.what, "verdict": word(finding), "detail": finding.detail}))
        .collect();
    command.format.print(&view, |_| {
        table(
            ["", "CHECK", "DETAIL"],
            findings.iter().map(|finding| [word(finding).into(), finding.what.into(), finding.detail.clone()]),
        )
    });
    match findings.iter().filter(|finding| finding.verdict == Verdict::Bad).count() {
        0 => Ok(()),
        wrong => Err(Failure::new(format!("{wrong} of {} checks went wrong", findings.len()))
            .hint("oncegate config show prints every setting and where it came from")),
    }
}

/// The check of a separate guard store.
async fn guards(loaded: &Loaded) -> Option<Finding> {
    loaded.config.guard_store.as_ref()?;
    let what = "guard store";
    Some(match open_existing_guards(&loaded.config, None).await {
        Ok(store) => {
            let report = store.report().await;
            store.close().await;
            match report {
                Ok(report) => Finding { verdict: Verdict::Good, what, detail: report.detail },
                Err(error) => Finding { verdict: Verdict::Bad, what, detail: error.to_string() },
            }
        }
        Err(failure) if failure.is_not_found() => Finding {
            verdict: Verdict::Warning,
            what,
            detail: format!("{} yet; oncegate serve makes it", failure.message),
        },
        Err(failure) => Finding { verdict: Verdict::Bad, what, detail: failure.message },
    })
}

fn configuration(loaded: &Loaded) -> Finding {
    let detail = match &loaded.file {
        Some(file) => file.display().to_string(),
        None => "defaults; there is no oncegate.toml here".into(),
    };
    Finding { verdict: Verdict::Good, what: "configuration", detail }
}

async fn examine(store: &dyn MainStore, loaded: &Loaded) -> Vec<Finding> {
    let mut findings = vec![];
    match store.report().await {
        Ok(report) => {
            let detail = format!("{}, schema version {}", report.detail, report.schema_version);
            findings.push(Finding { verdict: Verdict::Good, what: "store", detail });
            findings.extend(report.warnings.into_iter().map(|detail| Finding {
                verdict: Verdict::Warning,
                what: "durability",
                detail,
            }));
            findings.push(clock(report.now));
        }
        Err(error) => findings.push(Finding { verdict: Verdict::Bad, what: "store", detail: error.to_string() }),
    }
    match store.keys().await {
        Ok(keys) => {
            let live = keys.iter().filter(|key| key.is_live(SystemClock.now())).count();
            findings.push(match mark::is_set(store).await {
                Ok(marked) => access(live, marked || !keys.is_empty(), loaded),
                Err(error) => Finding { verdict: Verdict::Bad, what: "access", detail: error.to_string() },
            });
        }
        Err(error) => findings.push(Finding { verdict: Verdict::Bad, what: "access", detail: error.to_string() }),
    }
    findings
}

fn clock(store: oncegate::Time) -> Finding {
    let machine = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let skew = machine.as_micros().abs_diff(u128::from(store.micros().unsigned_abs()));
    let skew = Duration::from_micros(u64::try_from(skew).unwrap_or(u64::MAX));
    let verdict = if skew > SKEW_MAX { Verdict::Warning } else { Verdict::Good };
    Finding { verdict, what: "clock", detail: format!("the store's is {skew:?} from this machine's") }
}

fn access(live: usize, has_existed: bool, loaded: &Loaded) -> Finding {
    let listen = loaded.config.listen;
    let make = "oncegate key create --workspace default --role admin";
    let (verdict, detail) = match (has_existed, live) {
        (false, _) if loaded.config.auth.required => {
            (Verdict::Good, "no keys yet; the first start makes an admin key in the data folder".into())
        }
        (false, _) if listen.ip().is_loopback() => (
            Verdict::Good,
            format!("the server is open: {listen} answers this machine's own user without a key. To end that: {make}"),
        ),
        (false, _) => (Verdict::Bad, format!("no keys: the server will not start on {listen}; make one: {make}")),
        (true, 0) => (Verdict::Warning, format!("no live key: every request is refused. Make one: {make}")),
        (true, live) => (Verdict::Good, format!("{live} live keys")),
    };
    Finding { verdict, what: "access", detail }
}
