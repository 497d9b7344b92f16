//! Arguments that commands share.

use clap::Args;
use oncegate::{WorkspaceName, limits};
use uuid::Uuid;

use oncegate_http::audit::{Act, By};
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, say};

#[derive(Args)]
pub struct Note {
    /// Why, for the log; at most 1 KiB
    #[arg(long)]
    note: Option<String>,
}

impl Note {
    pub fn read(self) -> Result<Option<String>, Failure> {
        let max = limits::NOTE_BYTES_MAX;
        match self.note {
            Some(note) if note.len() > max => {
                Err(Failure::usage(format!("--note is at most {max} bytes; this one has {}", note.len())))
            }
            note => Ok(note),
        }
    }
}

#[derive(Args)]
pub struct Scope {
    #[arg(long, default_value = "default")]
    workspace: String,
}

impl Scope {
    pub fn workspace(&self) -> Result<WorkspaceName, Failure> {
        WorkspaceName::new(&self.workspace).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// One thing, by its id.
#[derive(Args)]
pub struct One {
    id: String,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    pub format: Format,
}

/// A parsed id: what kind of thing it names, and which commands handle that kind.
pub struct Wanted {
    pub workspace: WorkspaceName,
    pub id: Uuid,
    what: &'static str,
    commands: &'static str,
}

impl One {
    /// `what` is the kind's name, `commands` are the commands that list and show it.
    pub fn read(&self, what: &'static str, commands: &'static str) -> Result<Wanted, Failure> {
        let workspace = self.scope.workspace()?;
        let wanted = |id| Wanted { workspace, id, what, commands };
        match self.id.parse() {
            Ok(id) => Ok(wanted(id)),
            // A text that is no id matches nothing, so it gets the same error as an unknown id.
            Err(_) => Err(wanted(Uuid::nil()).no_such(&self.id)),
        }
    }
}

impl Wanted {
    /// A person's act on it, for the audit log.
    pub fn act(&self, event: &'static str, note: Option<&str>) -> Act {
        Act::new(event, &self.workspace, (self.what, self.id), &By::from(who().as_str()), note)
    }

    pub fn missing(&self) -> Failure {
        self.no_such(&self.id.to_string())
    }

    fn no_such(&self, id: &str) -> Failure {
        let Wanted { workspace, what, commands, .. } = self;
        Failure::not_found(format!("no {what} {id} in workspace {workspace}"))
            .hint(format!("oncegate {commands} list --workspace {workspace}"))
    }

    /// Wrong state for this operation.
    pub fn refused(&self, why: impl std::fmt::Display) -> Failure {
        let Wanted { workspace, id, commands, .. } = self;
        Failure::new(why.to_string()).hint(format!("oncegate {commands} show {id} --workspace {workspace}"))
    }
}

/// A page of a list.
#[derive(Args)]
pub struct Paging {
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    limit: Limit,
    /// Where the page before ended
    #[arg(long)]
    pub cursor: Option<Uuid>,
}

#[derive(Args)]
pub struct Limit {
    #[arg(long, default_value_t = limits::PAGE_DEFAULT)]
    limit: usize,
}

impl Limit {
    pub fn read(&self) -> Result<usize, Failure> {
        match (1..=limits::PAGE_MAX).contains(&self.limit) {
            true => Ok(self.limit),
            false => Err(Failure::usage(format!("--limit is 1 to {}", limits::PAGE_MAX))),
        }
    }
}

impl Paging {
    pub fn workspace(&self) -> Result<WorkspaceName, Failure> {
        self.scope.workspace()
    }

    pub fn limit(&self) -> Result<usize, Failure> {
        self.limit.read()
    }
}

/// The value that has the given name; `None` if no name is given.
pub fn one_of<T: Copy, const N: usize>(
    flag: &str,
    given: Option<String>,
    all: [T; N],
    as_str: fn(T) -> &'static str,
) -> Result<Option<T>, Failure> {
    let Some(name) = given else { return Ok(None) };
    let found = all.into_iter().find(|value| as_str(*value) == name);
    found.map(Some).ok_or_else(|| Failure::usage(format!("{flag} is one of {}", all.map(as_str).join(", "))))
}

/// The user at the command line.
pub fn who() -> String {
    std::env::var("USER").unwrap_or_else(|_| "the command line".into())
}

/// Prints the user, the act and the reason to standard error.
pub fn audit(id: impl std::fmt::Display, done: &str, note: Option<&str>) {
    let (by, why) = (who(), note.map_or(String::new(), |note| format!(": {note}")));
    say(format_args!("{id} {done} by {by}{why}"));
}
