//! The environment: `ONCEGATE_CLAIMS_WINDOW` is `claims.window`. With `_FILE` after it, the variable names a file that holds the value.
//!
//! A setting under a name that the user chose (a guard) has no variable, because a variable's name cannot show which letters were
//! lower-case.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::error::{ConfigError, nearest};
use super::layers::{Layers, Origin};
use super::path::KeyPath;
use super::settings::{ANY, SETTINGS, Setting};
use oncegate_process::secret_file;

const PREFIX: &str = "ONCEGATE_";
const CONFIG: &str = "ONCEGATE_CONFIG";
const TESTS_PREFIX: &str = "ONCEGATE_TEST_";
const FILE_SUFFIX: &str = "_FILE";

/// The variables that concern the configuration, by name.
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    pub fn read(env: impl IntoIterator<Item = (OsString, OsString)>) -> Environment {
        let ours = |(name, value): (OsString, OsString)| {
            let name = name.into_string().ok()?;
            let other = name.starts_with(TESTS_PREFIX) || is_of_kubernetes(&name, &value);
            (name.starts_with(PREFIX) && !other).then_some((name, value))
        };
        Environment(env.into_iter().filter_map(ours).collect())
    }

    pub fn config_file(&self) -> Option<PathBuf> {
        self.0.get(CONFIG).map(PathBuf::from)
    }

    pub fn apply(&self, layers: &mut Layers, errors: &mut Vec<ConfigError>) {
        for (name, value) in self.0.iter().filter(|(name, _)| *name != CONFIG) {
            errors.extend(self.apply_one(name, value, layers).err());
        }
    }

    fn apply_one(&self, name: &str, value: &OsString, layers: &mut Layers) -> Result<(), ConfigError> {
        let (setting, text) = match (setting_of(name), name.strip_suffix(FILE_SUFFIX).and_then(setting_of)) {
            (Some(setting), _) => (setting, text_of(name, value)?),
            (None, Some(setting)) => (setting, self.text_of_file(name, value, setting)?),
            (None, None) => return Err(unknown_variable(name)),
        };
        let path = KeyPath::parse(setting.key).expect("keys in the table are well-formed");
        layers.set(path, setting, setting.kind.read_text(&text), Origin::Env(name.to_owned()))
    }

    fn text_of_file(&self, name: &str, file: &OsString, setting: &Setting) -> Result<String, ConfigError> {
        let direct = name.strip_suffix(FILE_SUFFIX).unwrap_or(name);
        if self.0.contains_key(direct) {
            return Err(ConfigError::new(name, format!("{direct} is set as well"), format!("run: unset {direct}")));
        }
        let file = PathBuf::from(file);
        if setting.secret && file.exists() {
            return secret_file::read(&file)
                .map_err(|why| ConfigError::new(name, why, "let the user of this process alone read it"));
        }
        let text = std::fs::read_to_string(&file).map_err(|error| {
            let what = format!("{} cannot be read: {error}", file.display());
            ConfigError::new(name, what, "see that it is there, and that the user of this process may read it")
        })?;
        // Editors end a file with a newline; no value ends with one.
        Ok(text.trim_end_matches(['\n', '\r']).to_owned())
    }
}

/// Kubernetes sets variables that begin like ours for a Service named `oncegate`, or `oncegate-` and something. A port that is a bare
/// number
/// was set by a person, and the error should name `listen`.
fn is_of_kubernetes(name: &str, value: &OsStr) -> bool {
    let is_url = || value.to_str().is_some_and(|value| value.contains("://"));
    let is_numbered = |(_, rest): (&str, &str)| rest.starts_with(|first: char| first.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && is_url()
        || name.split_once("_PORT_").is_some_and(is_numbered)
}

/// A variable's value counts as a secret until its setting is known: the error does not repeat it.
fn text_of(name: &str, value: &OsString) -> Result<String, ConfigError> {
    let not_unicode = || ConfigError::new(name, "is not UTF-8", format!("run: unset {name}"));
    value.clone().into_string().map_err(|_| not_unicode())
}

fn variable_of(setting: &Setting) -> String {
    format!("{PREFIX}{}", setting.key.replace('.', "_").to_ascii_uppercase())
}

fn setting_of(variable: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| !setting.is_override() && variable_of(setting) == variable)
}

fn unknown_variable(name: &str) -> ConfigError {
    let what = "there is no such variable";
    let for_one_of_many = SETTINGS.iter().filter(|setting| setting.is_override()).find_map(|setting| {
        let table = setting.key.split(&format!(".{ANY}.")).next()?;
        let prefix = format!("{PREFIX}{}_", table.replace('.', "_").to_ascii_uppercase());
        name.starts_with(&prefix).then_some(table)
    });
    if let Some(table) = for_one_of_many {
        return ConfigError::new(name, what, format!("set it in the file, under [{table}.NAME]"));
    }
    let variables: Vec<String> = SETTINGS.iter().filter(|setting| !setting.is_override()).map(variable_of).collect();
    // All of them have the same prefix; only the rest is compared.
    let bare = |variable: &str| variable.strip_prefix(PREFIX).map(str::to_owned).unwrap_or_default();
    let candidates: Vec<String> = variables.iter().map(|variable| bare(variable)).collect();
    let (written, suffix) = match name.strip_suffix(FILE_SUFFIX) {
        Some(written) => (bare(written), FILE_SUFFIX),
        None => (bare(name), ""),
    };
    let hint = match nearest(&written, candidates.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {PREFIX}{near}{suffix}?"),
        None => format!("there are: {CONFIG}, {}", variables.join(", ")),
    };
    ConfigError::new(name, what, hint)
}
