//! The table of routes: every path and method that the server answers, with what a request needs.
//!
//! The router is built from the same lines, so the table has every route. A test requests each route in every role.

use oncegate::store::Role;

/// What a request needs, once keys exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// A key of this role, or of a higher one.
    Key(Role),
    /// Such a key, or a session of such a key: a page or a form of the dashboard.
    Session(Role),
}

#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// In lower case.
    pub method: &'static str,
    pub path: &'static str,
    pub needs: Needs,
}

impl Needs {
    pub const fn as_str(self) -> &'static str {
        match self {
            Needs::Nothing => "nothing",
            Needs::Key(_) => "key",
            Needs::Session(_) => "session",
        }
    }

    pub const fn role(self) -> Option<Role> {
        match self {
            Needs::Nothing => None,
            Needs::Key(role) | Needs::Session(role) => Some(role),
        }
    }
}

/// Makes `ROUTES`, and the function `routed`, which makes a router of them.
#[macro_export]
macro_rules! routes {
    ($($path:expr => { $($method:ident $needs:expr => $handler:path,)+ })+) => {
        pub const ROUTES: &[$crate::routes::Route] = &[
            $($($crate::routes::Route { method: stringify!($method), path: $path, needs: $needs },)+)+
        ];

        fn routed() -> axum::Router<std::sync::Arc<$crate::app::App>> {
            axum::Router::new()$(.route($path, axum::routing::MethodRouter::new()$(.$method($handler))+))+
        }
    };
}
pub use routes;
