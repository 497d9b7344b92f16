//! The file: found, parsed, and walked against the table of settings.

use std::io::ErrorKind;
use std::path::PathBuf;

use toml_edit::{Document, Item, Key, TableLike};

use super::error::ConfigError;
use super::layers::{Layers, Origin, check_name, unknown_key};
use super::path::KeyPath;
use super::settings::{self, Place};

pub struct File {
    pub path: PathBuf,
    text: String,
}

/// Reads the named file, or the default file if it exists.
pub fn read(named: Option<PathBuf>, default: PathBuf) -> Result<Option<File>, ConfigError> {
    let must_exist = named.is_some();
    let path = named.unwrap_or(default);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(File { path, text })),
        Err(error) if error.kind() == ErrorKind::NotFound && !must_exist => Ok(None),
        Err(error) => {
            let hint = match error.kind() {
                ErrorKind::NotFound => "check the name; without --config and ONCEGATE_CONFIG, defaults will do",
                ErrorKind::InvalidData => "save it as UTF-8",
                _ => "see that it is a file, and that the user of this process may read it",
            };
            Err(ConfigError::new(path.display(), format!("cannot be read: {error}"), hint))
        }
    }
}

impl File {
    /// Applies every valid value to `layers`, and collects every error.
    pub fn apply(&self, layers: &mut Layers, errors: &mut Vec<ConfigError>) {
        match Document::parse(self.text.as_str()) {
            Ok(document) => {
                Walk { file: self, layers, errors }.table(document.as_table(), &KeyPath::default());
            }
            Err(error) => {
                // Only the message: the parser's full output repeats the line, which may hold a secret.
                let at = self.origin(error.span().map_or(0, |span| span.start));
                let hint = "a line is `key = value`, text in quotes, or `[table]`; see https://toml.io";
                errors.push(ConfigError::new(at, format!("not TOML: {}", error.message().replace('\n', ", ")), hint));
            }
        }
    }

    /// The line and column of a byte, both from 1, the column in characters.
    fn origin(&self, offset: usize) -> Origin {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Origin::File {
            path: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

struct Walk<'a> {
    file: &'a File,
    layers: &'a mut Layers,
    errors: &'a mut Vec<ConfigError>,
}

impl Walk<'_> {
    fn table(&mut self, table: &dyn TableLike, path: &KeyPath) {
        for (name, item) in table.iter() {
            let key = table.key(name).expect("a name that the table gave is in it");
            let found = self.item(key, item, path);
            self.errors.extend(found.err());
        }
    }

    fn item(&mut self, key: &Key, item: &Item, table: &KeyPath) -> Result<(), ConfigError> {
        let path = table.child(key.get());
        let at_key = self.file.origin(key.span().map_or(0, |span| span.start));
        if settings::is_named_by_user(table) {
            check_name(&at_key, &path, key.get())?;
        }
        match (settings::place(&path), item.as_table_like()) {
            (Place::Table, inner) if settings::is_list(&path) => self.list(item, inner, &path, at_key),
            (Place::Unknown, _) => Err(unknown_key(at_key, &path)),
            (Place::Table, Some(inner)) => {
                self.table(inner, &path);
                Ok(())
            }
            (Place::Table, None) => {
                let what = format!("`{path}` is a table, not a value");
                Err(ConfigError::new(at_key, what, format!("write [{path}] and its settings below")))
            }
            (Place::Value(setting), _) => {
                let at_value = item.span().map_or(at_key, |span| self.file.origin(span.start));
                self.layers.set(path, setting, setting.kind.read_toml(item), at_value)
            }
        }
    }

    /// Tables that are identified by their numbers, from 1 on: `[[…]]`, or as they are shown, `[….1]`.
    fn list(
        &mut self,
        item: &Item,
        numbered: Option<&dyn TableLike>,
        path: &KeyPath,
        at: Origin,
    ) -> Result<(), ConfigError> {
        let tables: Option<Vec<&dyn TableLike>> = match item {
            Item::ArrayOfTables(tables) => Some(tables.iter().map(|table| table as _).collect()),
            item => match (numbered, item.as_array()) {
                (Some(numbered), _) => numbered.iter().map(|(_, item)| item.as_table_like()).collect(),
                (None, Some(list)) => list.iter().map(|item| item.as_inline_table().map(|table| table as _)).collect(),
                (None, None) => None,
            },
        };
        let Some(tables) = tables else {
            return Err(ConfigError::new(at, format!("`{path}` is a list of tables"), format!("write [[{path}]]")));
        };
        for (i, table) in tables.into_iter().enumerate() {
            if table.is_empty() {
                let what = format!("there is nothing in [[{path}]]");
                return Err(ConfigError::new(at, what, "write its settings below, or take it out"));
            }
            self.table(table, &path.child(&(i + 1).to_string()));
        }
        Ok(())
    }
}
