//! `oncegate migrate`: the store's schema, step by step.

use clap::Args;
use oncegate::StoreUrl;
use serde_json::json;

use oncegate_config::Config;
use oncegate_http::stores::open_store;
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, say, table};

#[derive(Args)]
pub struct Command {
    /// Print what would be done, with its SQL, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    let steps = config.store.expose().parse::<StoreUrl>()?.migrations().await?;
    let pending = steps.iter().filter(|step| !step.applied).count();
    let view: Vec<_> = steps
        .iter()
        .map(|step| json!({"version": step.version, "name": step.name, "applied": step.applied, "sql": step.sql}))
        .collect();
    if !command.dry_run {
        open_store(config).await?.close().await;
    }
    command.format.print(&view, |_| {
        let mut text = table(
            ["VERSION", "NAME", "STATUS"],
            steps.iter().map(|step| {
                let status = match (step.applied, command.dry_run) {
                    (true, _) => "was applied",
                    (false, true) => "pending",
                    (false, false) => "applied now",
                };
                [step.version.to_string(), step.name.into(), status.into()]
            }),
        );
        if command.dry_run {
            for step in steps.iter().filter(|step| !step.applied) {
                text.push_str(&format!("\n\n-- {} {}\n{}", step.version, step.name, step.sql.trim_end()));
            }
        }
        text
    });
    if command.dry_run && pending > 0 {
        say(format_args!("{pending} pending; oncegate migrate applies them"));
    }
    Ok(())
}
