//! The configuration: flags over `ONCEGATE_*` over `oncegate.toml` over defaults.
//!
//! One table lists all settings: `settings::SETTINGS`; reading, checking, showing and
//! suggesting all walk it. All errors are reported at once, each with its place and a valid
//! alternative. No secret is ever part of an error, of `Debug` or of the shown configuration.

mod action;
mod build;
mod channel;
mod env;
mod error;
mod file;
mod layers;
mod networks;
mod path;
mod saga;
mod secret_url;
mod send;
mod settings;
mod show;
#[cfg(test)]
mod tests;
mod typed;
mod value;
mod weakness;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use channel::STARTTLS;
pub use error::ConfigError;
pub use networks::is_allowed;
pub use secret_url::SecretUrl;
pub use typed::{
    Actions, Channel, ChannelKind, Config, HandlerKind, Limits, Log, LogFormat, LogLevel, Sagas, Tls, WorkspaceLimits,
};
pub use weakness::Weakness;

use layers::Layers;
use oncegate_process::failure::Failure;
use oncegate_process::output::say;

/// The file that is read in the working directory, if it exists and no other file is named.
pub const DEFAULT_FILE: &str = "oncegate.toml";

/// A flag that sets a setting.
#[derive(Clone, Debug)]
pub struct Flag {
    /// The setting's key: `log.format`.
    pub key: String,
    pub value: String,
    /// The flag as it was typed: `--log`.
    pub name: String,
}

/// The configuration, and where each value of it came from.
pub struct Loaded {
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    layers: Layers,
}

impl Config {
    /// Reads all sources of the configuration. `file` must exist if it is named, here or in
    /// `ONCEGATE_CONFIG`; the default file may be missing.
    pub fn load(
        flags: Vec<Flag>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        file: Option<PathBuf>,
    ) -> Result<Loaded, Vec<ConfigError>> {
        Self::load_from(Path::new(""), flags, env, file)
    }

    /// As [`load`](Self::load), with the default file looked for in `folder`.
    /// Loads the configuration as if the process had been started in this folder, with these variables.
    pub fn load_from(
        folder: &Path,
        flags: Vec<Flag>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        file: Option<PathBuf>,
    ) -> Result<Loaded, Vec<ConfigError>> {
        let mut layers = Layers::of_defaults();
        let mut errors = Vec::new();
        let env = env::Environment::read(env);
        let named = file.or_else(|| env.config_file());
        let file = file::read(named, folder.join(DEFAULT_FILE)).unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        if let Some(file) = &file {
            file.apply(&mut layers, &mut errors);
        }
        env.apply(&mut layers, &mut errors);
        for flag in flags {
            layers.apply_flag(flag, &mut errors);
        }
        layers.place_store();
        build::check_relations(&layers, &mut errors);
        if errors.is_empty() {
            Ok(Loaded { config: build::build(&layers), file: file.map(|file| file.path), layers })
        } else {
            Err(errors)
        }
    }
}

/// The failure of a configuration. Prints all errors but the last.
pub fn misconfigured(errors: Vec<ConfigError>) -> Failure {
    let (last, others) = errors.split_last().expect("a failure has a reason");
    for error in others {
        say(format_args!("oncegate: {error}"));
    }
    Failure::usage(last.to_string())
}
