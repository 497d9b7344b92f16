//! Stands in for traces in a build without them: nothing is recorded.

mod ended;

use std::fmt::Display;
use std::sync::Arc;

use axum::http::{HeaderMap, Method, Request, StatusCode};
use oncegate::{Claim, Decided, Time, WorkspaceName};

pub use ended::Ended;

type About<'a> = &'a [(&'static str, &'a (dyn Display + Sync))];

pub enum Span {}

impl Span {
    pub fn answered(&self, _status: StatusCode) {}

    pub fn end(&self) {}
}

pub fn request<B>(_request: &Request<B>) -> Option<Arc<Span>> {
    None
}

pub fn routed(_method: &Method, _route: &str) {}

pub fn asked_by(_workspace: &WorkspaceName) {}

pub fn within<F: Future>(_span: Option<Arc<Span>>, run: F) -> F {
    run
}

pub fn carried<F: Future>(run: F) -> F {
    run
}

pub fn call<F: Future<Output: Ended>>(_name: &'static str, _workspace: &WorkspaceName, _about: About, run: F) -> F {
    run
}

pub fn work<F: Future<Output: Ended>>(_name: &'static str, _workspace: &WorkspaceName, _about: About, run: F) -> F {
    run
}

pub fn pass_on(_headers: &mut HeaderMap) {}

pub fn decided(_decided: &Decided<'_>) {}

pub fn met(_claim: &Claim, _now: Time) {}
