//! The place of a value in the configuration: `claims.guard."team:a".window`.

use std::fmt;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// Reads a key as TOML writes it, quoted segments and all.
    pub fn parse(dotted: &str) -> Option<KeyPath> {
        let keys = toml_edit::Key::parse(dotted).ok()?;
        Some(KeyPath(keys.iter().map(|key| key.get().to_owned()).collect()))
    }

    pub fn of(segments: &[&str]) -> KeyPath {
        KeyPath(segments.iter().map(|segment| (*segment).to_owned()).collect())
    }

    pub fn child(&self, segment: &str) -> KeyPath {
        let mut segments = self.0.clone();
        segments.push(segment.to_owned());
        KeyPath(segments)
    }

    /// The table that contains it, and its name in that table.
    pub fn split_last(&self) -> Option<(KeyPath, &str)> {
        let (last, table) = self.0.split_last()?;
        Some((KeyPath(table.to_vec()), last))
    }

    pub fn segments(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.0.iter().enumerate() {
            let dot = if place == 0 { "" } else { "." };
            write!(f, "{dot}{}", toml_edit::Key::new(segment).display_repr())?;
        }
        Ok(())
    }
}
