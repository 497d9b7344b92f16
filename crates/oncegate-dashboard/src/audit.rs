//! The audit log of the workspace.

use std::sync::Arc;

use axum::extract::State;
use oncegate::Time;
use oncegate::store::{Clock, Role, SystemClock};

use super::parts::{Cell, List, Table};
use super::session::Visitor;
use super::{Fields, Frame, PAGE, Shown, show_list};
use oncegate_http::api::audit_cursor;
use oncegate_http::app::App;
use oncegate_http::audit::{self, Line};

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let page = audit::list(&*app.store, visitor.workspace(), PAGE, audit_cursor(fields.get("cursor"))?).await?;
    let now = SystemClock.now();
    let row = |line: &Line| {
        let at = Time::parse(&line.at).map_or_else(|| Cell::text(&line.at), |at| Cell::time(at, now));
        let by = line.by_name.as_ref().map_or_else(|| line.by.clone(), |name| format!("{name} ({})", line.by));
        let result = line.of.map_or_else(|| line.result.clone(), |of| format!("{} (line {of})", line.result));
        let about = line.about.iter().map(|(name, value)| format!("{name}: {value}"));
        let why = line.why.iter().chain(&line.detail).cloned().chain(about).collect::<Vec<_>>().join(" · ");
        [
            Cell::text(line.seq),
            at,
            Cell::text(line.event.trim_start_matches("audit.").replace('_', " ")),
            Cell::text(format!("{} {}", line.kind, line.subject)),
            Cell::text(by),
            Cell::text(why),
            Cell::text(result),
        ]
    };
    let lead =
        "What people did, newest first. A line is written before its act; a later line says where it was not done.";
    let head = ["Line", "When", "What", "To", "By", "Why", "Result"];
    let list = List::new("/audit", lead, Table::new("Audit log", head, page.lines.iter().map(row)));
    show_list(Frame::new(&visitor, "/audit", "Audit"), list.then(page.next))
}
