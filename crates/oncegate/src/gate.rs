//! The entry point: opens a store by its URL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use oncegate_core::{GuardName, InvalidName, Policy, WorkspaceName};
use oncegate_store::{Clock, MainStore, MemoryStore, Migration, Store, StoreError, SystemClock};

use crate::actions::Actions;
use crate::guard::{Guard, GuardError};
use crate::ledger::{Ledger, Observer};

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

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0:?} is no store. hint: sqlite:FILE, postgres://USER@HOST/DATABASE or memory:")]
    Url(String),
    #[error("this build has no {0} store. hint: enable the feature {0:?} of the crate `oncegate`")]
    NotBuilt(&'static str),
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

/// An open store in one workspace. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    ledger: Arc<Ledger>,
    actions: Option<Actions>,
    main: Option<Arc<dyn MainStore>>,
    workspace: WorkspaceName,
}

impl Gate {
    /// Opens the store at `url`, in the workspace `default`.
    pub async fn open(url: &str) -> Result<Gate, OpenError> {
        let store = url.parse::<StoreUrl>()?.open().await?;
        let gate = Gate::over(store.clone(), Arc::new(()));
        Ok(Gate { main: Some(store.clone()), actions: Some(Actions::over(store)), ..gate })
    }

    /// Uses a store that is already open. The observer hears of every decision.
    pub fn over(store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Gate {
        let ledger = Arc::new(Ledger::start(store, observer));
        Gate { ledger, actions: None, main: None, workspace: WorkspaceName::default_workspace() }
    }

    /// The same store, in another workspace.
    pub fn in_workspace(&self, name: &str) -> Result<Gate, InvalidName> {
        Ok(Gate { workspace: WorkspaceName::new(name)?, ..self.clone() })
    }

    pub fn workspace(&self) -> &WorkspaceName {
        &self.workspace
    }

    /// Scheduled actions; the workers of the server run them. `None` if the store keeps only claims.
    pub fn actions(&self) -> Option<&Actions> {
        self.actions.as_ref()
    }

    /// Sagas with these definitions, each with a unique name. `None` if the store keeps only claims.
    #[cfg(feature = "sagas")]
    pub fn sagas(
        &self,
        definitions: impl IntoIterator<Item = crate::sagas::Definition>,
        options: crate::sagas::Options,
    ) -> Option<crate::sagas::Sagas> {
        Some(crate::sagas::Sagas::over(self.main.clone()?, self.ledger.clone(), definitions, options))
    }

    /// The send log. `None` if the store keeps only claims. The servers on the same store record the end of a worker's lease.
    pub fn sends(&self, options: crate::sends::Options) -> Option<crate::sends::Sends> {
        Some(crate::sends::Sends::over(self.main.clone()?, self.ledger.clone(), options))
    }

    /// Reminders; the servers on the same store send them. `None` if the store keeps only claims.
    pub fn reminders(&self, options: crate::reminders::Options) -> Option<crate::reminders::Reminders> {
        Some(crate::reminders::Reminders::over(self.main.clone()?, self.ledger.clone(), options))
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
