//! Creates and revokes keys, for the API, the dashboard and the command line: with a line in the audit log before each act.

use std::time::Duration;

use oncegate::store::{ApiKey, Clock, Keyring, MainStore, Role, StoreError, SystemClock};
use oncegate::{Time, WorkspaceName};
use oncegate_core::units::parse_duration;

use crate::audit::{Act, Audit, By, Receipt};
use crate::auth::{NewKey, mark};

/// Characters of a key's name.
const NAME_MAX: usize = 100;
/// The maximum live keys of a workspace, and the maximum expired keys: each server reads all of them every second.
const LIVE_MAX: usize = 1_000;
const KEYS_MAX: usize = 10_000;
/// The longest life of a key that expires.
const LIFE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The properties of a new key.
pub struct Terms {
    pub workspace: WorkspaceName,
    pub role: Role,
    pub name: Option<String>,
    pub expires_at: Option<Time>,
}

/// A new key. Its secret is returned only once.
pub struct Made {
    pub key: ApiKey,
    pub secret: String,
}

#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    #[error("there is no workspace {0}")]
    NoWorkspace(WorkspaceName),
    #[error("there is no live key {0} in this workspace")]
    NoKey(String),
    #[error("the workspace has {LIVE_MAX} live keys, which is the most that there may be: revoke one first")]
    TooManyLive,
    #[error(
        "the workspace has had {KEYS_MAX} keys, which is the most that there may be: make them in another workspace"
    )]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Checks a key's name.
pub fn name(given: &str) -> Result<String, String> {
    let name = given.trim();
    let is_plain = !name.is_empty() && name.chars().count() <= NAME_MAX && !name.chars().any(char::is_control);
    is_plain.then(|| name.to_owned()).ok_or_else(|| format!("a key's name has 1 to {NAME_MAX} characters"))
}

/// Parses a key's expiry: a time, or a duration from now.
pub fn end(given: &str, now: Time) -> Result<Time, String> {
    let wrong = || format!("{given:?} is neither a time (\"2027-01-31T00:00:00Z\") nor a duration (\"90d\")");
    let at = Time::parse(given).or_else(|| parse_duration(given).map(|span| now + span)).ok_or_else(wrong)?;
    if at <= now || at > now + LIFE_MAX {
        return Err(format!("a key ends within ten years from now, not at {at}"));
    }
    Ok(at)
}

pub fn role(given: &str) -> Result<Role, String> {
    Role::parse(given).ok_or_else(|| format!("a role is send, operate or admin, not {given:?}"))
}

crate::audit::unmade! {
    NotChanged: NotChanged::Store(StoreError::Unknown(_)),
}

/// Creates a key, and sets the mark that a key has existed.
pub async fn create(store: &dyn MainStore, audit: &Audit, by: &By, terms: Terms) -> Result<Made, NotChanged> {
    let NewKey { id, secret, hash } = NewKey::generate();
    let Terms { workspace, role, name, expires_at } = terms;
    let exists = store.workspaces().await?.iter().any(|(name, _)| *name == workspace);
    if !exists {
        return Err(NotChanged::NoWorkspace(workspace));
    }
    check_number(&list(store, &workspace).await?, SystemClock.now())?;
    let act = Act::new("audit.key_created", &workspace, ("key", &id), by, None).about("role", role.as_str());
    let act = name.iter().fold(act, |act, name| act.about("name", name));
    let act = expires_at.iter().fold(act, |act, at| act.about("expiresAt", at));
    let key = ApiKey {
        id,
        workspace: workspace.clone(),
        role,
        hash,
        // The store sets the time.
        created_at: Time::LONG_AGO,
        revoked_at: None,
        name,
        created_by: Some(by.id.clone()),
        expires_at,
        last_used_at: None,
    };
    let create = async {
        match store.create_key(key.clone()).await? {
            true => Ok(()),
            false => Err(NotChanged::NoWorkspace(workspace.clone())),
        }
    };
    let ((), Receipt { seq, hash }) = audit.act(act, create).await?;
    // If this fails, the first server that sees the key sets the mark.
    if let Err(error) = mark::set(store).await {
        tracing::warn!(event = "keys.not_marked", %error);
    }
    let (key_id, by) = (&key.id, &by.id);
    tracing::warn!(event = "audit.key_created", %workspace, keyId = key_id, role = role.as_str(), by, auditSeq = seq, auditHash = hash);
    Ok(Made { key, secret })
}

fn check_number(keys: &[ApiKey], now: Time) -> Result<(), NotChanged> {
    let live = keys.iter().filter(|key| key.is_live(now)).count();
    match () {
        () if live >= LIVE_MAX => Err(NotChanged::TooManyLive),
        () if keys.len() >= KEYS_MAX => Err(NotChanged::TooMany),
        () => Ok(()),
    }
}

/// Revokes a key of a workspace.
pub async fn revoke(
    store: &dyn MainStore,
    audit: &Audit,
    by: &By,
    (workspace, id): (&WorkspaceName, &str),
    why: Option<&str>,
) -> Result<ApiKey, NotChanged> {
    let none = || NotChanged::NoKey(id.to_owned());
    let found = find(store, workspace, id).await?.filter(|key| key.revoked_at.is_none()).ok_or_else(none)?;
    let act = Act::new("audit.key_revoked", workspace, ("key", id), by, why);
    let revoke = async { if store.revoke_key(id).await? { Ok(()) } else { Err(none()) } };
    let ((), Receipt { seq, hash }) = audit.act(act, revoke).await?;
    let by = &by.id;
    tracing::warn!(event = "audit.key_revoked", %workspace, keyId = id, by, why, auditSeq = seq, auditHash = hash);
    Ok(find(store, workspace, id).await?.unwrap_or(found))
}

/// A workspace's keys, newest first, with the expired ones.
pub async fn list(store: &(impl Keyring + ?Sized), workspace: &WorkspaceName) -> Result<Vec<ApiKey>, StoreError> {
    let keys = store.keys().await?.into_iter().rev();
    Ok(keys.filter(|key| key.workspace == *workspace).collect())
}

pub async fn find(
    store: &(impl Keyring + ?Sized),
    workspace: &WorkspaceName,
    id: &str,
) -> Result<Option<ApiKey>, StoreError> {
    Ok(list(store, workspace).await?.into_iter().find(|key| key.id == id))
}

/// The state of a key.
pub fn state(key: &ApiKey, now: Time) -> &'static str {
    match key {
        key if key.revoked_at.is_some() => "revoked",
        key if !key.is_live(now) => "expired",
        _ => "live",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_key_is_a_time_or_a_duration_within_ten_years() {
        let now = Time::parse("2026-11-15T00:00:00Z").unwrap();
        let at = |text: &str| Time::parse(text).unwrap();
        assert_eq!(end("90d", now), Ok(now + Duration::from_secs(90 * 24 * 3600)));
        assert_eq!(end("2027-01-31T00:00:00Z", now), Ok(at("2027-01-31T00:00:00Z")));
        for wrong in ["", "soon", "0s", "2026-11-15T00:00:00Z", "2025-01-01T00:00:00Z", "4000d"] {
            assert!(end(wrong, now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_workspace_has_a_bounded_number_of_keys_live_or_over() {
        let key = |number: usize, revoked_at: Option<Time>| ApiKey {
            id: number.to_string(),
            workspace: WorkspaceName::default_workspace(),
            role: Role::Send,
            hash: [0; 32],
            created_at: Time::LONG_AGO,
            revoked_at,
            name: None,
            created_by: None,
            expires_at: None,
            last_used_at: None,
        };
        let now = Time::parse("2026-11-15T00:00:00Z").unwrap();
        let check = |live: usize, over: usize| {
            let live = (0..live).map(|number| key(number, None));
            let keys: Vec<_> = live.chain((0..over).map(|number| key(number, Some(now)))).collect();
            check_number(&keys, now)
        };
        assert!(check(LIVE_MAX - 1, KEYS_MAX - LIVE_MAX).is_ok());
        assert!(matches!(check(LIVE_MAX, 0), Err(NotChanged::TooManyLive)));
        assert!(matches!(check(0, KEYS_MAX), Err(NotChanged::TooMany)));
    }

    #[test]
    fn a_name_is_short_and_printable() {
        assert_eq!(name(" the till "), Ok("the till".into()));
        for wrong in ["", "  ", "a\nb", &"x".repeat(NAME_MAX + 1)] {
            assert!(name(wrong).is_err(), "{wrong:?}");
        }
    }
}
