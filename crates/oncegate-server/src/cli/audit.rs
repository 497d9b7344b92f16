//! `oncegate audit`: lists the audit log, straight from the store, and verifies its chains.

use clap::{Args, Subcommand};
use oncegate::WorkspaceName;
use serde_json::json;

use super::args::{Limit, Scope};
use super::show::{more, plain};
use super::with;
use oncegate_config::Config;
use oncegate_http::api::AuditView;
use oncegate_http::audit::check::{Anchor, check};
use oncegate_http::audit::{self, Line};
use oncegate_http::stores::open_existing;
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, table};

#[derive(Subcommand)]
pub enum Command {
    /// List who did what, newest first
    List(ListArgs),
    /// Check that no line was removed or changed
    Verify {
        /// One workspace alone
        #[arg(long)]
        workspace: Option<String>,
        /// A line that the log has told, NUMBER:HASH (auditSeq and auditHash); needs --workspace
        #[arg(long, value_name = "NUMBER:HASH", requires = "workspace")]
        anchor: Vec<Anchor>,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    limit: Limit,
    /// Where the page before ended
    #[arg(long)]
    cursor: Option<u64>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args, config).await,
        Command::Verify { workspace, anchor, format } => {
            let named = |name: String| WorkspaceName::new(&name).map_err(|error| Failure::usage(error.to_string()));
            verify(workspace.map(named).transpose()?, &anchor, format, config).await
        }
    }
}

async fn list(args: ListArgs, config: &Config) -> Result<(), Failure> {
    let (workspace, limit) = (args.scope.workspace()?, args.limit.read()?);
    with(open_existing(config).await?, async |store| {
        let page = audit::list(store, &workspace, limit, args.cursor).await?;
        let more = more(page.next);
        let row = |line: &Line| {
            let result = line.of.map_or_else(|| line.result.clone(), |of| format!("{} ({of})", line.result));
            let what = line.event.trim_start_matches("audit.").to_owned();
            let why = plain(line.why.as_deref().or(line.detail.as_deref()).unwrap_or_default());
            let to = plain(&format!("{} {}", line.kind, line.subject));
            [line.seq.to_string(), line.at.clone(), what, to, plain(&line.by), why, result]
        };
        let rows: Vec<_> = page.lines.iter().map(row).collect();
        args.format.print(&AuditView::from(page), |_| {
            table(["LINE", "AT", "WHAT", "TO", "BY", "WHY", "RESULT"], rows) + &more
        });
        Ok(())
    })
    .await
}

/// The first wrong line of each workspace. JSON output has the results of all workspaces, even if one is wrong.
async fn verify(
    workspace: Option<WorkspaceName>,
    anchors: &[Anchor],
    format: Format,
    config: &Config,
) -> Result<(), Failure> {
    with(open_existing(config).await?, async |store| {
        let all = store.workspaces().await?.into_iter().map(|(name, _)| name);
        let wanted = workspace.map_or_else(|| all.collect(), |one| vec![one]);
        let (mut found, mut broken) = (vec![], 0);
        for workspace in &wanted {
            let checked = check(store, workspace, anchors).await?;
            broken += usize::from(checked.is_err());
            found.push((workspace.as_str(), checked));
        }
        let view: Vec<_> = found
            .iter()
            .map(|(workspace, checked)| match checked {
                Ok(whole) => json!({"workspace": workspace, "whole": true, "lines": whole.lines, "hash": whole.hash}),
                Err(broken) => {
                    json!({"workspace": workspace, "whole": false, "brokenAt": broken.seq, "why": broken.why})
                }
            })
            .collect();
        format.print(&view, |_| {
            let rows = found.iter().map(|(workspace, checked)| {
                let (state, detail) = match checked {
                    Ok(whole) => ("whole", format!("{} lines, the last {}", whole.lines, whole.hash)),
                    Err(broken) => ("broken", format!("line {}: {}", broken.seq, broken.why)),
                };
                [(*workspace).to_owned(), state.to_owned(), detail]
            });
            table(["WORKSPACE", "CHAIN", "DETAIL"], rows)
        });
        match broken {
            0 => Ok(()),
            _ => Err(Failure::new("a line of the audit log was removed or changed").hint(
                "compare with auditSeq and auditHash in the log of the servers; restore the store from a backup",
            )),
        }
    })
    .await
}
