//! The layers of the configuration, each of which overrides the ones before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use oncegate::actions;
use oncegate_core::{GuardName, WorkspaceName};

use super::Flag;
use super::error::{ConfigError, Fault};
use super::path::KeyPath;
use super::settings::{self, Place, SETTINGS, Setting};
use super::value::Value;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File {
        path: PathBuf,
        line: usize,
        column: usize,
    },
    /// The variable's name.
    Env(String),
    /// The flag's.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Origin::Env(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// A value in effect. It must not be printed, because it may be a secret.
#[derive(Clone)]
pub struct Entry {
    pub setting: &'static Setting,
    pub value: Value,
    pub origin: Origin,
}

/// The value in effect for each setting. A later layer overrides an earlier one.
pub struct Layers {
    entries: BTreeMap<KeyPath, Entry>,
    /// Settings with an error in some layer: their value in effect is not the one that the user wants.
    broken: BTreeSet<KeyPath>,
}

impl Layers {
    pub fn of_defaults() -> Layers {
        let entry = |setting: &'static Setting| {
            let value = setting.kind.read_text(setting.default?).expect("defaults in the table are right");
            let path = KeyPath::parse(setting.key).expect("keys in the table are well-formed");
            Some((path, Entry { setting, value, origin: Origin::Default }))
        };
        Layers { entries: SETTINGS.iter().filter_map(entry).collect(), broken: BTreeSet::new() }
    }

    /// Places the embedded store in the data folder, unless a store is configured.
    pub fn place_store(&mut self) {
        let (store, data_dir) = (KeyPath::of(&["store"]), KeyPath::of(&["data_dir"]));
        let (Some(Entry { origin: Origin::Default, setting, .. }), Some(folder)) =
            (self.get(&store), self.get(&data_dir))
        else {
            return;
        };
        let Value::Text(name) = &folder.value else { return };
        if let Ok(value) = setting.kind.read_text(&format!("sqlite:{}/oncegate.db", name.trim_end_matches('/'))) {
            let entry = Entry { setting, value, origin: folder.origin.clone() };
            self.entries.insert(store, entry);
        }
    }

    pub fn get(&self, path: &KeyPath) -> Option<&Entry> {
        self.entries.get(path)
    }

    pub fn is_broken(&self, path: &KeyPath) -> bool {
        self.broken.contains(path)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&KeyPath, &Entry)> {
        self.entries.iter()
    }

    /// The names that the user chose in `table`.
    pub fn names_in(&self, table: &KeyPath) -> Vec<&str> {
        let depth = table.segments().len();
        let under = |path: &&KeyPath| path.segments().starts_with(table.segments()) && path.segments().len() > depth;
        let mut names: Vec<_> = self.entries.keys().filter(under).map(|path| path.segments()[depth].as_str()).collect();
        names.dedup();
        names
    }

    /// Sets a value, over the one of an earlier layer.
    pub fn set(
        &mut self,
        path: KeyPath,
        setting: &'static Setting,
        read: Result<Value, Fault>,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        match read {
            Ok(value) => {
                self.entries.insert(path, Entry { setting, value, origin });
                Ok(())
            }
            Err(fault) => {
                let error = fault.at(&origin, &path);
                self.broken.insert(path);
                Err(error)
            }
        }
    }

    pub fn apply_flag(&mut self, flag: Flag, errors: &mut Vec<ConfigError>) {
        let path = KeyPath::parse(&flag.key).unwrap_or_default();
        let origin = Origin::Flag(flag.name);
        let applied = match settings::place(&path) {
            Place::Value(setting) => {
                let named = setting.names_chosen(&path).try_for_each(|name| check_name(&origin, &path, name));
                named.and_then(|()| self.set(path, setting, setting.kind.read_text(&flag.value), origin))
            }
            Place::Table | Place::Unknown => Err(unknown_key(&origin, &path)),
        };
        errors.extend(applied.err());
    }
}

pub fn unknown_key(at: impl ToString, path: &KeyPath) -> ConfigError {
    ConfigError::new(at, format!("there is no setting `{path}`"), settings::suggest(path))
}

/// Checks a name that the user chose: of a type of actions, which callers choose, or of a guard or a channel.
pub fn check_name(at: impl ToString, path: &KeyPath, name: &str) -> Result<(), ConfigError> {
    let mut segments = path.segments();
    if let [first, workspace, of_workspace @ ..] = segments
        && first == "workspace"
    {
        if name == workspace {
            let hint = "write the name of a workspace; oncegate workspace list";
            WorkspaceName::new(name).map_err(|error| ConfigError::new(at.to_string(), error.to_string(), hint))?;
        }
        segments = of_workspace;
    }
    if segments.starts_with(&["actions".to_owned(), "type".to_owned()]) {
        let hint = "write the actionType of those who schedule, in quotes";
        return actions::check_name("the type", name).map_err(|error| ConfigError::new(at, error.to_string(), hint));
    }
    if settings::is_list(&path.split_last().map(|(table, _)| table).unwrap_or_default()) {
        return Ok(());
    }
    match GuardName::new(name) {
        Ok(_) => Ok(()),
        Err(error) => Err(ConfigError::new(at, error.to_string(), "choose a name of letters, digits, '_' and '-'")),
    }
}
