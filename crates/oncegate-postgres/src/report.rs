//! The store's report about itself, with warnings about ways in which the server could lose acknowledged commits.

use oncegate_core::Time;
use oncegate_store::Report;

use crate::fault::Fault;
use crate::migrate::SCHEMA_VERSION;
use crate::server::Server;
use crate::shared_connection::SharedConnection;

const REPORT: &str = include_str!("../sql/report.sql");

/// The server's settings that affect durability.
struct Settings<'a> {
    fsync: &'a str,
    full_page_writes: &'a str,
    synchronous_commit: &'a str,
    has_standbys: bool,
}

pub(crate) async fn report(desk: &SharedConnection, server: &Server) -> Result<Report, Fault> {
    let rows = desk.ask(REPORT, &[&desk.injected_time()]).await?;
    let row = rows.first().ok_or_else(|| Fault::Unable("the server has nothing to report".into()))?;
    let settings = Settings {
        fsync: row.get("fsync"),
        full_page_writes: row.get("full_page_writes"),
        synchronous_commit: row.get("synchronous_commit"),
        has_standbys: !row.get::<_, &str>("standbys").is_empty(),
    };
    let schema_version = row.get::<_, Option<i64>>("schema_version").unwrap_or(0);
    // Warnings about what has happened come before warnings about what could happen.
    let mut warnings = server.health.warnings();
    warnings.extend(settings.warnings());
    if schema_version > SCHEMA_VERSION {
        warnings.push(format!("the schema is of version {schema_version}, newer than this build's {SCHEMA_VERSION}"));
    }
    Ok(Report {
        kind: "postgres",
        detail: format!("PostgreSQL {} at {}", row.get::<_, &str>("version"), server.place),
        schema_version,
        now: Time::from_micros(row.get("now")),
        warnings,
    })
}

impl Settings<'_> {
    fn warnings(&self) -> Vec<String> {
        let mut warnings = vec![];
        if self.fsync == "off" {
            warnings
                .push("fsync is off: acknowledged work could be lost, and the database with it, in a power cut".into());
        }
        if self.full_page_writes == "off" {
            warnings
                .push("full_page_writes is off: acknowledged work could be lost to a torn page in a power cut".into());
        }
        match self.synchronous_commit {
            "off" => warnings
                .push("synchronous_commit is off: acknowledged work could be lost when the server crashes".into()),
            weak @ ("local" | "remote_write") if self.has_standbys => warnings.push(format!(
                "synchronous_commit is {weak}: acknowledged work could be lost when a standby takes over"
            )),
            _ => {}
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Settings<'_> =
        Settings { fsync: "on", full_page_writes: "on", synchronous_commit: "on", has_standbys: false };

    #[test]
    fn a_server_that_keeps_what_it_acknowledged_is_not_warned_about() {
        assert!(GOOD.warnings().is_empty());
        assert!(Settings { synchronous_commit: "local", ..GOOD }.warnings().is_empty());
        assert!(Settings { synchronous_commit: "remote_apply", has_standbys: true, ..GOOD }.warnings().is_empty());
    }

    #[test]
    fn each_setting_that_could_lose_acknowledged_work_is_named() {
        let bad = [
            ("fsync", Settings { fsync: "off", ..GOOD }),
            ("full_page_writes", Settings { full_page_writes: "off", ..GOOD }),
            ("synchronous_commit", Settings { synchronous_commit: "off", ..GOOD }),
            ("synchronous_commit", Settings { synchronous_commit: "local", has_standbys: true, ..GOOD }),
        ];
        for (name, settings) in bad {
            let warnings = settings.warnings();
            assert!(warnings.len() == 1 && warnings[0].starts_with(name), "{warnings:?}");
        }
    }
}
