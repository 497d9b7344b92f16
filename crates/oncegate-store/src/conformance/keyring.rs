//! Workspaces and keys.

use std::time::Duration;

use super::{START, World, workspace};
use crate::{ApiKey, Role};

/// A key keeps its fields and can be revoked once. A key of a workspace that does not exist is not created.
pub async fn workspaces_and_keys_are_kept_and_revoked(world: World) {
    let store = &world.store;
    let name = workspace("acme");
    assert!(store.create_workspace(&name).await.expect("creates"));
    assert!(!store.create_workspace(&name).await.expect("is there already"));
    let names: Vec<_> = store.workspaces().await.expect("lists").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [name.clone(), workspace("default")], "and the default one, by name");

    let key = ApiKey {
        id: "k1".into(),
        workspace: name.clone(),
        role: Role::Operate,
        hash: [7; 32],
        created_at: START,
        revoked_at: None,
        name: Some("the till".into()),
        created_by: Some("ada".into()),
        expires_at: Some(START + Duration::from_secs(3600)),
        last_used_at: None,
    };
    let plain = ApiKey { id: "k0".into(), name: None, created_by: None, expires_at: None, ..key.clone() };
    assert!(!store.create_key(ApiKey { workspace: workspace("nobody"), ..key.clone() }).await.expect("answers"));
    assert!(store.create_key(key.clone()).await.expect("creates"));
    assert!(store.create_key(plain.clone()).await.expect("creates"));
    assert_eq!(store.keys().await.expect("lists"), [plain.clone(), key.clone()]);
    store.touch_keys(&["k1".into(), "k9".into()]).await.expect("writes");
    assert_eq!(store.keys().await.expect("lists"), [plain, ApiKey { last_used_at: Some(START), ..key }]);
    store.touch_keys(&[]).await.expect("has nothing to do");
    assert!(store.revoke_key("k1").await.expect("revokes"));
    assert!(!store.revoke_key("k1").await.expect("answers"), "once");
    assert!(!store.revoke_key("k2").await.expect("answers"));
    assert_eq!(store.keys().await.expect("lists")[1].revoked_at, Some(START));
}
