//! Names that people choose: workspaces and guards.
//!
//! Both use one alphabet, narrow enough to be safe in a URL, a log label, a
//! metric and a shell without quoting. Most names are short and are stored inline, so a copy of a key
//! needs no allocation and no reference count that threads share.

use std::fmt;

use smol_str::SmolStr;

use crate::limits::NAME_BYTES_MAX;

/// The error of a text that is not the name of a workspace or a guard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a {what} is 1 to {NAME_BYTES_MAX} characters of a-z, A-Z, 0-9, '_', '-', '.' and ':', not starting with a mark; got {got:?}"
)]
pub struct InvalidName {
    what: &'static str,
    got: String,
}

fn check(what: &'static str, name: &str) -> Result<SmolStr, InvalidName> {
    let well_formed = name.len() <= NAME_BYTES_MAX
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b));
    if well_formed { Ok(name.into()) } else { Err(InvalidName { what, got: name.chars().take(80).collect() }) }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(SmolStr);

        impl $type {
            /// Makes a name of this text, if the text follows the rules of names.
            pub fn new(name: &str) -> Result<Self, InvalidName> {
                check($what, name).map(Self)
            }

            /// The text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// The workspace that owns the claims. Nothing is ever visible across workspaces.
    WorkspaceName,
    "workspace name"
);
name!(
    /// The guard that a claim belongs to: `message`, `send`, or a guard of the caller's own.
    GuardName,
    "guard name"
);

impl WorkspaceName {
    /// The workspace of a server without API keys, and the library's default.
    pub fn default_workspace() -> Self {
        WorkspaceName(SmolStr::new_static("default"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_without_quoting() {
        for good in ["a", "default", "webhook:send", "Team-7.eu_1", &"x".repeat(NAME_BYTES_MAX)] {
            assert!(GuardName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-rf", ".hidden", "a b", "a/b", "ä", "a\n", "a\"b", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(WorkspaceName::new(bad).is_err(), "{bad}");
        }
    }
}
