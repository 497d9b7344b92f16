//! The entry point: opens a store by its URL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use oncegate_core::{GuardName, InvalidName, Policy, WorkspaceName};
use oncegate_store::{Clock, MainStore, MemoryStore, Migration, Store, StoreError, SystemClock};

use crate::actions::Actions;
use crate::channel::Channels;
use crate::guard::{Guard, GuardError};
use crate::ledger::Ledger;
use crate::observer::Observer;
use crate::queue::Queue;
use crate::scoped::Scoped;

/// How many messages of a gate are sent at once.
const SENDS_AT_ONCE: usize = 64;

/// Where claims are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`: this process only. For tests.
    Memory,
    /// `sqlite:FILE`: one file, no service.
    Sqlite(PathBuf),
    /// `postgres://user@host/database`: several replicas.
    Postgres(String),
}

/// Why the store at a URL was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text is not the URL of a store. Only the part before the colon is kept, because the rest may contain a password.
    #[error("{0:?} is no store. hint: sqlite:FILE, postgres://USER@HOST/DATABASE or memory:")]
    Url(String),
    /// This build has no such store, because it lacks the cargo feature with this name.
    #[error("this build has no {0} store. hint: enable the feature {0:?} of the crate `oncegate`")]
    NotBuilt(&'static str),
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            StoreUrl::Postgres(_) => f.write_str("postgres://…"),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = OpenError;

    fn from_str(url: &str) -> Result<Self, OpenError> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(StoreUrl::Memory),
            Some(("sqlite", file)) if !file.trim_start_matches('/').is_empty() => {
                // Other tools write sqlite:///var/x.db for /var/x.db.
                Ok(StoreUrl::Sqlite(file.strip_prefix("//").unwrap_or(file).into()))
            }
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => Ok(StoreUrl::Postgres(url.into())),
            // The rest of the URL may contain a password.
            Some((scheme, _)) => Err(OpenError::Url(format!("{scheme}:…"))),
            None => Err(OpenError::Url(url.into())),
        }
    }
}

impl StoreUrl {
    /// Opens the store and brings its schema up to date.
    pub async fn open(&self) -> Result<Arc<dyn MainStore>, OpenError> {
        self.open_with(None).await
    }

    /// Like [`StoreUrl::open`], with the clock of a test.
    pub async fn open_with(&self, clock: Option<Arc<dyn Clock>>) -> Result<Arc<dyn MainStore>, OpenError> {
        let or_system = |clock: Option<Arc<dyn Clock>>| clock.unwrap_or_else(|| Arc::new(SystemClock));
        match self {
            StoreUrl::Memory => Ok(Arc::new(MemoryStore::with_clock(or_system(clock)))),
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(file) => {
                let options = oncegate_sqlite::Options { clock: or_system(clock), ..Default::default() };
                Ok(Arc::new(oncegate_sqlite::SqliteStore::open(file, options)?))
            }
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => {
                let options = oncegate_postgres::Options { clock, ..Default::default() };
                Ok(Arc::new(oncegate_postgres::PostgresStore::open(url, options).await?))
            }
            #[cfg(not(feature = "sqlite"))]
            StoreUrl::Sqlite(_) => Err(OpenError::NotBuilt("sqlite")),
            #[cfg(not(feature = "postgres"))]
            StoreUrl::Postgres(_) => Err(OpenError::NotBuilt("postgres")),
        }
    }

    /// Lists the migrations of the store's schema, and which of them are applied. Changes nothing.
    pub async fn migrations(&self) -> Result<Vec<Migration>, OpenError> {
        match self {
            StoreUrl::Memory => Ok(vec![]),
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(file) => Ok(oncegate_sqlite::SqliteStore::pending(file)?),
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => Ok(oncegate_postgres::migrations(url, &Default::default()).await?),
            #[cfg(not(feature = "sqlite"))]
            StoreUrl::Sqlite(_) => Err(OpenError::NotBuilt("sqlite")),
            #[cfg(not(feature = "postgres"))]
            StoreUrl::Postgres(_) => Err(OpenError::NotBuilt("postgres")),
        }
    }
}

/// The guards of a store, in one workspace. For stores that keep only claims; a [`Gate`] has guards and all other policies. Cheap to
/// clone.
#[derive(Clone)]
pub struct Guards {
    ledger: Arc<Ledger>,
    workspace: WorkspaceName,
}

impl Guards {
    /// The guards of an open store, in the workspace `default`. The observer hears of every decision.
    pub fn over(store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Guards {
        Guards { ledger: Arc::new(Ledger::start(store, observer)), workspace: WorkspaceName::default_workspace() }
    }

    /// A guard: claims under `name`, with `policy`.
    pub fn guard(&self, name: &str, policy: Policy) -> Result<Guard, GuardError> {
        Guard::new(self.ledger.clone(), self.workspace.clone(), GuardName::new(name)?, policy)
    }

    /// Finishes the background work. Claims in flight stay in flight until their leases end.
    pub async fn close(&self) {
        self.ledger.close().await;
    }
}

/// An open store in one workspace. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    guards: Guards,
    store: Arc<dyn MainStore>,
    /// One for all callers: they share the queues of its slots.
    actions: Actions,
}

impl Gate {
    /// Opens the store at `url`, in the workspace `default`.
    pub async fn open(url: &str) -> Result<Gate, OpenError> {
        Gate::builder(url).open().await
    }

    /// A gate to open with an observer, a clock or a workspace of its own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use oncegate::Gate;
    ///
    /// let gate = Gate::builder("memory:").workspace("acme")?.open().await?;
    /// assert_eq!(gate.workspace().as_str(), "acme");
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: &str) -> GateBuilder {
        GateBuilder {
            url: url.to_owned(),
            observer: Arc::new(()),
            clock: None,
            workspace: WorkspaceName::default_workspace(),
        }
    }

    /// Uses a store that is already open. The observer hears of every decision.
    pub fn over(store: Arc<dyn MainStore>, observer: Arc<dyn Observer>) -> Gate {
        Gate { guards: Guards::over(store.clone(), observer), actions: Actions::over(store.clone()), store }
    }

    /// The same store, in another workspace.
    pub fn in_workspace(&self, name: &str) -> Result<Gate, InvalidName> {
        let guards = Guards { workspace: WorkspaceName::new(name)?, ..self.guards.clone() };
        Ok(Gate { guards, ..self.clone() })
    }

    /// The workspace of this gate.
    pub fn workspace(&self) -> &WorkspaceName {
        &self.guards.workspace
    }

    /// The open store.
    pub fn store(&self) -> &Arc<dyn MainStore> {
        &self.store
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.guards.ledger
    }

    /// A guard: claims under `name`, with `policy`.
    pub fn guard(&self, name: &str, policy: Policy) -> Result<Guard, GuardError> {
        self.guards.guard(name, policy)
    }

    /// Scheduled actions of this workspace. A [`Gate::worker`] runs them, or the workers of a server on the same store.
    pub fn actions(&self) -> Scoped<Actions> {
        self.scoped(self.actions.clone())
    }

    /// Sagas with these definitions, each with a name of its own.
    #[cfg(feature = "sagas")]
    pub fn sagas(
        &self,
        definitions: impl IntoIterator<Item = crate::sagas::Definition>,
        options: crate::sagas::Options,
    ) -> Result<Scoped<crate::sagas::Sagas>, crate::sagas::NameTaken> {
        let sagas = crate::sagas::Sagas::over(self.store.clone(), self.ledger().clone(), definitions, options)?;
        Ok(self.scoped(sagas))
    }

    /// The send log of this workspace. A [`Gate::worker`] or a server on the same store records the end of a worker's lease.
    pub fn sends(&self, options: crate::sends::Options) -> Scoped<crate::sends::Sends> {
        self.scoped(crate::sends::Sends::over(self.store.clone(), self.ledger().clone(), options))
    }

    /// Reminders of this workspace. A [`Gate::worker`] or a server on the same store sends them.
    pub fn reminders(&self, options: crate::reminders::Options) -> Scoped<crate::reminders::Reminders> {
        self.scoped(crate::reminders::Reminders::over(self.store.clone(), self.ledger().clone(), options))
    }

    /// Messages of this workspace, sent through these channels. A post sends its message at once; a [`Gate::worker`] sends what is left.
    pub fn messages(
        &self,
        channels: impl Channels,
        options: crate::messages::Options,
    ) -> Scoped<Arc<crate::messages::Messages>> {
        let (store, ledger) = (self.store.clone(), self.ledger().clone());
        let queue = Queue::new(store.clone(), ledger.waiters().clone(), options.lease, SENDS_AT_ONCE);
        let (channels, watcher) = (Arc::new(channels), Arc::new(()));
        self.scoped(crate::messages::Messages::over(store, ledger, None, channels, queue, options, watcher))
    }

    fn scoped<T>(&self, policy: T) -> Scoped<T> {
        Scoped::new(policy, self.workspace().clone())
    }

    /// Finishes the background work. Claims in flight stay in flight until their leases end.
    pub async fn close(&self) {
        self.guards.close().await;
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("workspace", self.workspace()).finish_non_exhaustive()
    }
}

/// See [`Gate::builder`].
pub struct GateBuilder {
    url: String,
    observer: Arc<dyn Observer>,
    clock: Option<Arc<dyn Clock>>,
    workspace: WorkspaceName,
}

impl GateBuilder {
    /// The observer hears of every decision.
    pub fn observer(self, observer: impl Observer) -> GateBuilder {
        GateBuilder { observer: Arc::new(observer), ..self }
    }

    /// The clock of a test, in place of the store's own.
    pub fn clock(self, clock: Arc<dyn Clock>) -> GateBuilder {
        GateBuilder { clock: Some(clock), ..self }
    }

    /// The workspace. `default` unless it is set.
    pub fn workspace(self, name: &str) -> Result<GateBuilder, InvalidName> {
        Ok(GateBuilder { workspace: WorkspaceName::new(name)?, ..self })
    }

    /// Opens the store and brings its schema up to date.
    pub async fn open(self) -> Result<Gate, OpenError> {
        let store = self.url.parse::<StoreUrl>()?.open_with(self.clock).await?;
        let gate = Gate::over(store, self.observer);
        Ok(Gate { guards: Guards { workspace: self.workspace, ..gate.guards.clone() }, ..gate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_url_is_read_or_refused_without_showing_a_password() {
        let parse = |url: &str| url.parse::<StoreUrl>();
        assert_eq!(parse("memory:").unwrap(), StoreUrl::Memory);
        assert_eq!(parse("sqlite:data/x.db").unwrap(), StoreUrl::Sqlite("data/x.db".into()));
        assert_eq!(parse("sqlite:///var/x.db").unwrap(), StoreUrl::Sqlite("/var/x.db".into()));
        assert_eq!(parse("sqlite:/var/x.db").unwrap(), StoreUrl::Sqlite("/var/x.db".into()));
        assert!(matches!(parse("postgresql://a@b/c").unwrap(), StoreUrl::Postgres(_)));
        for bad in ["", "sqlite", "sqlite:", "sqlite://", "memory:x", "mysql://u:secret@h/d", "postgres:u:secret@h"] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains("hint:") && !error.contains("secret"), "{bad}: {error}");
        }
    }
}
