//! `oncegate config`: the configuration as it is in effect.

use clap::Subcommand;

use super::Failure;
use super::output::Format;
use crate::config::Loaded;

#[derive(Subcommand)]
pub enum Command {
    /// Say whether the configuration is right
    Check,
    /// Print the configuration in effect, and where each value came from
    Show {
        #[command(flatten)]
        format: Format,
    },
}

/// What is wrong with a configuration is said when it is loaded: here it is right.
pub fn run(command: Command, loaded: &Loaded) -> Result<(), Failure> {
    match command {
        Command::Check => match &loaded.file {
            Some(file) => eprintln!("{} is right", file.display()),
            None => eprintln!("there is no file; flags, environment and defaults are right"),
        },
        Command::Show { format } => format.print(&loaded.to_json(), |_| loaded.to_toml()),
    }
    Ok(())
}
