//! `oncegate config`: the effective configuration.

use clap::Subcommand;
use serde_json::json;

use oncegate_config::Loaded;
use oncegate_http::sagas;
use oncegate_http::sagas::not_loaded;
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, say};

#[derive(Subcommand)]
pub enum Command {
    /// Say whether the configuration is right
    Check {
        #[command(flatten)]
        format: Format,
    },
    /// Print the configuration in effect, and where each value came from
    Show {
        #[command(flatten)]
        format: Format,
    },
}

/// Errors of a configuration are reported when it is loaded, so the configuration is valid here.
pub fn run(command: Command, loaded: &Loaded) -> Result<(), Failure> {
    match command {
        Command::Check { format } => {
            // The files that it names must be valid, too.
            sagas::load_all(&loaded.config.sagas).map_err(not_loaded)?;
            for weakness in loaded.config.weaknesses() {
                say(format_args!("warning: {weakness}"));
            }
            check(loaded, format);
        }
        Command::Show { format } => format.print(&loaded.to_json(), |_| loaded.to_toml()),
    }
    Ok(())
}

fn check(loaded: &Loaded, format: Format) {
    let file = loaded.file.as_ref().map(|file| file.display().to_string());
    let line = match &file {
        Some(file) => format!("{file} is right"),
        None => "there is no file; flags, environment and defaults are right".into(),
    };
    let warnings: Vec<_> = loaded.config.weaknesses().iter().map(ToString::to_string).collect();
    let mut view = json!({"file": file, "right": true});
    if !warnings.is_empty() {
        view["warnings"] = warnings.into();
    }
    format.report(&view, line);
}
