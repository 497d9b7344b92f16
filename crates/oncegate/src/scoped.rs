//! A policy in one workspace.

use std::ops::Deref;

use oncegate_core::WorkspaceName;

/// A policy in one workspace: its operations need no workspace. The operations of the policy itself are there too, by [`Deref`].
#[derive(Clone, Debug)]
pub struct Scoped<T> {
    policy: T,
    workspace: WorkspaceName,
}

impl<T> Scoped<T> {
    pub(crate) fn new(policy: T, workspace: WorkspaceName) -> Scoped<T> {
        Scoped { policy, workspace }
    }

    /// The workspace.
    pub fn workspace(&self) -> &WorkspaceName {
        &self.workspace
    }

    /// The policy, whose operations take the workspace.
    pub fn policy(&self) -> &T {
        &self.policy
    }
}

impl<T> Deref for Scoped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.policy
    }
}
