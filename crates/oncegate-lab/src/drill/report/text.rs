//! The report for a terminal.

use super::html::verdict;
use super::words::{grouped, mark, total};
use super::{GuardFound, PathReport, PointReport, Report};
use oncegate_process::output::table;

pub fn page(report: &Report) -> String {
    let paths: Vec<String> = report.paths.iter().map(path).collect();
    format!("{}\n\n{}", paths.join("\n\n"), verdict(&report.paths))
}

const HEADS: [&str; 10] =
    ["POINT", "KILLS", "JOBS", "SENT", "REPEATS", "DUPLICATES", "NOT ARRIVED", "MISSED", "UNKNOWN", "WHEN"];

fn path(path: &PathReport) -> String {
    let guards: String = match path.guards.is_empty() {
        true => "none".to_owned(),
        false => {
            let lines: Vec<String> = path.guards.iter().map(guard).collect();
            format!("{}\n    {}", path.guards.len(), lines.join("\n    "))
        }
    };
    let sum = total(&path.points);
    let rows = path.points.iter().chain([&sum]).map(row);
    let points = table(HEADS, rows);
    let broken: String = path.broken.iter().map(|what| format!("\n  broken: {what}")).collect();
    format!(
        "{} ({})\n  promise {}\n  policy  {}\n  flag    {}\n  guards  {guards}\n{points}{broken}",
        path.name,
        mark(path),
        path.promise,
        path.policy,
        path.flag
    )
}

fn guard(guard: &GuardFound) -> String {
    let GuardFound { name, kept, decisions, stopped } = guard;
    let counted =
        |what: &str, count: &Option<u64>| count.map_or(String::new(), |count| format!("; {} {what}", grouped(count)));
    format!("{name}: {kept}{}{}", counted("decisions", decisions), counted("stopped", stopped))
}

fn row(point: &PointReport) -> [String; 10] {
    let PointReport { kills, jobs, sent, repeats, duplicates, not_arrived, missed, unknown, .. } = point;
    let [kills, jobs, sent, repeats, duplicates, not_arrived, missed, unknown] =
        [kills, jobs, sent, repeats, duplicates, not_arrived, missed, unknown].map(|count| grouped(*count));
    let name = point.point.clone();
    [name, kills, jobs, sent, repeats, duplicates, not_arrived, missed, unknown, point.when.clone()]
}
