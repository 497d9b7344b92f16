//! The drill's report as one page: no script, no external resources, readable on a phone, at night and on paper.

use super::chart;
use super::words::{counted, escaped, findings, grouped, mark, total};
use super::{GuardFound, PathReport, PointReport, Report};

const STYLE: &str = include_str!("page.css");

/// The columns, with their explanations.
const COLUMNS: [(&str, &str); 8] = [
    ("kills", "how often the worker was killed (SIGKILL) at this point"),
    ("jobs", "jobs that were to have their effect, each once"),
    ("sent", "jobs whose effect arrived at the provider, at least once"),
    ("repeats", "further calls under the same key, which a provider that honours the key drops"),
    ("duplicates", "effects beyond the first of a job: what nobody wants"),
    ("not arrived", "jobs whose effect never arrived"),
    ("missed", "of these, jobs that had begun and may not be repeated, and whose record says that they were missed"),
    (
        "unknown",
        "jobs of which the record does not say that they had their effect, though they may have had it: a person settles them",
    ),
];

pub fn page(report: &Report) -> String {
    let paths: Vec<&PathReport> = report.paths.iter().collect();
    let verdict = verdict(&report.paths);
    let state = if report.paths.iter().all(|path| path.broken.is_empty()) { "ok" } else { "broken" };
    let charts = if paths.is_empty() { String::new() } else { charts(&paths) };
    let sections: String = paths.iter().map(|path| section(path)).collect();
    let explained: String =
        COLUMNS.iter().map(|(name, what)| format!("<div><dt>{name}</dt><dd>{what}</dd></div>\n")).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Oncegate drill: {verdict}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<p class=\"kind\">Oncegate drill</p>\n<h1 class=\"{state}\">{verdict}</h1>\n\
         <p class=\"about\">{}</p>\n\
         </header>\n<main>\n{charts}{sections}</main>\n\
         <footer>\n<h2>What the columns say</h2>\n<dl>\n{explained}</dl>\n</footer>\n</body>\n</html>\n",
        about(report)
    )
}

/// The whole report in one sentence.
pub fn verdict(paths: &[PathReport]) -> String {
    let broken: Vec<&PathReport> = paths.iter().filter(|path| !path.broken.is_empty()).collect();
    let all = total(paths.iter().flat_map(|path| &path.points));
    let jobs = |of: &PointReport| counted(of.jobs, "job");
    match (broken.len(), paths.len()) {
        // A drill without a kill proves nothing.
        (0, _) if all.kills == 0 => "Nothing was killed, so nothing is shown.".to_owned(),
        (0, count) => {
            let who = if count == 1 { "The path" } else { "Every path" };
            format!("{who} kept its promise: {}, {}, {}.", counted(all.kills, "kill"), jobs(&all), findings(&all))
        }
        (some, count) => {
            let of_broken = total(broken.iter().flat_map(|path| &path.points));
            let their = if some == 1 { "its" } else { "their" };
            let who = if count == 1 { "The path".to_owned() } else { format!("{some} of {count} paths") };
            let wrong = findings(&of_broken);
            // A promise can be broken in another way, so a count of zero must not appear as the reason.
            match wrong.strip_prefix("0 duplicates").map(|others| others.trim_start_matches(", ")) {
                Some("") => format!("{who} broke {their} promise in {}.", jobs(&of_broken)),
                Some(others) => format!("{who} broke {their} promise: {others} in {}.", jobs(&of_broken)),
                None => format!("{who} broke {their} promise: {wrong} in {}.", jobs(&of_broken)),
            }
        }
    }
}

fn about(report: &Report) -> String {
    let command = match &report.command {
        Some(words) => format!("<code>{}</code>", escaped(&shell(words))),
        None => "Oncegate's own paths".to_owned(),
    };
    let started = escaped(&report.started_at);
    format!(
        "{command}, drilled for {} by Oncegate {} on <time datetime=\"{started}\">{started}</time>",
        duration(report.seconds),
        escaped(&report.version)
    )
}

/// A command as a user would type it, quoted so that an argument with a space stays one argument.
fn shell(words: &[String]) -> String {
    let quoted = |word: &String| {
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    format!("{} min {} s", grouped(whole / 60), whole % 60)
}

fn charts(paths: &[&PathReport]) -> String {
    format!(
        "<figure>\n<div class=\"wide\">{}</div>\n<div class=\"narrow\">{}</div>\n</figure>\n",
        chart::svg(paths),
        chart::narrow(paths)
    )
}

fn section(path: &PathReport) -> String {
    let broken: String = path.broken.iter().map(|what| format!("<li>{}</li>\n", escaped(what))).collect();
    let broken = match path.broken.is_empty() {
        true => String::new(),
        false => format!("<div class=\"what-broke\">\n<h3>What broke</h3>\n<ul>\n{broken}</ul>\n</div>\n"),
    };
    let mark = mark(path);
    format!(
        "<section>\n<h2>{} <span class=\"mark {mark}\">{mark}</span></h2>\n<p class=\"promise\">{}</p>\n{broken}\
         <dl>\n<div><dt>Policy</dt><dd>{}</dd></div>\n<div><dt>Flag</dt><dd>{}</dd></div>\n\
         <div><dt>Guards</dt><dd>{}</dd></div>\n</dl>\n{}</section>\n",
        escaped(&path.name),
        escaped(&path.promise),
        escaped(&path.policy),
        escaped(&path.flag),
        guards(&path.guards),
        table(path)
    )
}

fn guards(found: &[GuardFound]) -> String {
    if found.is_empty() {
        return "<strong>None found.</strong>".to_owned();
    }
    let guard = |guard: &GuardFound| {
        let decisions = guard.decisions.map(|count| counted(count, "decision"));
        let stopped = guard.stopped.map(|count| format!("{} stopped", grouped(count)));
        let counts: Vec<String> = decisions.into_iter().chain(stopped).collect();
        let counts = if counts.is_empty() { String::new() } else { format!("; {}", counts.join(", ")) };
        format!("<li><strong>{}</strong>, kept: {}{counts}</li>\n", escaped(&guard.name), escaped(&guard.kept))
    };
    let count = found.len();
    format!("{count} found\n<ul>\n{}</ul>", found.iter().map(guard).collect::<String>())
}

fn table(path: &PathReport) -> String {
    if path.points.is_empty() {
        return "<p>No crash point was reached.</p>\n".to_owned();
    }
    let heads: String = COLUMNS.iter().map(|(name, _)| format!("<th scope=\"col\">{name}</th>")).collect();
    let rows: String = path.points.iter().map(row).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Crash points of {}\">\n<table>\n\
         <thead><tr><th scope=\"col\">crash point</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         <tfoot>\n{}</tfoot>\n</table>\n</div>\n",
        escaped(&path.name),
        row(&total(&path.points))
    )
}

fn row(point: &PointReport) -> String {
    let PointReport { kills, jobs, sent, repeats, duplicates, not_arrived, missed, unknown, .. } = *point;
    let counts = [kills, jobs, sent, repeats, duplicates, not_arrived, missed, unknown];
    let cell = |((name, _), count): (&(&str, &str), u32)| {
        let class = if count == 0 { "zero".to_owned() } else { name.replace(' ', "-") };
        format!("<td class=\"{class}\">{}</td>", grouped(count))
    };
    let cells: String = COLUMNS.iter().zip(counts).map(cell).collect();
    let when = match point.when.as_str() {
        "" => String::new(),
        when => format!("<small>{}</small>", escaped(when)),
    };
    // On a phone a name like "message.sending" may break at its dot.
    let name = escaped(&point.point).replace('.', ".<wbr>");
    format!("<tr><th scope=\"row\">{name}{when}</th>{cells}</tr>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(duplicates: u32, not_arrived: u32) -> PointReport {
        PointReport { kills: 107, jobs: 970, sent: 970 - not_arrived, duplicates, not_arrived, ..total([]) }
    }

    fn path(name: &str, points: Vec<PointReport>, broken: &[&str]) -> PathReport {
        PathReport {
            name: name.to_owned(),
            promise: "At most one effect.".to_owned(),
            policy: "hold".to_owned(),
            flag: "After the answer.".to_owned(),
            guards: Vec::new(),
            points,
            broken: broken.iter().map(|&what| what.to_owned()).collect(),
        }
    }

    fn report(paths: Vec<PathReport>) -> Report {
        let command = Some(vec!["./worker".to_owned(), "<b>".to_owned()]);
        Report {
            version: "0.1.0".to_owned(),
            started_at: "2026-03-21T14:03:11Z".to_owned(),
            seconds: 61.0,
            command,
            paths,
        }
    }

    #[test]
    fn the_verdict_is_one_sentence() {
        let good = path("a", vec![point(0, 0)], &[]);
        let bad = path("b", vec![point(1, 0), point(36, 2)], &["It came twice."]);
        let of = |paths: &[&PathReport]| verdict(&paths.iter().map(|&path| path.clone()).collect::<Vec<_>>());
        assert_eq!(of(&[&good, &good]), "Every path kept its promise: 214 kills, 1,940 jobs, 0 duplicates.");
        assert_eq!(of(&[&good]), "The path kept its promise: 107 kills, 970 jobs, 0 duplicates.");
        assert_eq!(of(&[&good, &bad]), "1 of 2 paths broke its promise: 37 duplicates, 2 not arrived in 1,940 jobs.");
        assert_eq!(of(&[&bad, &bad]), "2 of 2 paths broke their promise: 74 duplicates, 4 not arrived in 3,880 jobs.");
        assert_eq!(of(&[&bad]), "The path broke its promise: 37 duplicates, 2 not arrived in 1,940 jobs.");
        let silent = path("c", vec![point(0, 2)], &["Nobody was told."]);
        assert_eq!(of(&[&good, &silent]), "1 of 2 paths broke its promise: 2 not arrived in 970 jobs.");
        assert_eq!(of(&[]), "Nothing was killed, so nothing is shown.");
    }

    #[test]
    fn the_last_row_is_the_total() {
        let table = table(&path("a", vec![point(1, 0), point(36, 2)], &[]));
        let cells = "<td class=\"kills\">214</td><td class=\"jobs\">1,940</td><td class=\"sent\">1,938</td>\
                     <td class=\"zero\">0</td><td class=\"duplicates\">37</td><td class=\"not-arrived\">2</td>";
        assert!(table.contains(&format!("<tfoot>\n<tr><th scope=\"row\">total</th>{cells}")), "{table}");
    }

    #[test]
    fn guards_are_counted_and_it_is_said_if_there_are_none() {
        assert!(guards(&[]).starts_with("<strong>None found.</strong>"));
        let claim =
            GuardFound { name: "claim".to_owned(), kept: "a.db".to_owned(), decisions: Some(1), stopped: Some(1_200) };
        let found = guards(&[claim]);
        assert!(found.starts_with("1 found"));
        assert!(found.contains("<strong>claim</strong>, kept: a.db; 1 decision, 1,200 stopped"), "{found}");
    }

    #[test]
    fn no_text_becomes_markup_and_nothing_is_fetched() {
        let attack = "<script src=\"https://example.com\">";
        let page = page(&report(vec![path(attack, vec![point(0, 0)], &[attack])]));
        assert!(!page.contains("<script") && page.contains("&lt;script"));
        assert!(page.contains("<code>./worker &#39;&lt;b&gt;&#39;</code>, drilled for 1 min 1 s"));
        assert!(!page.contains("url(") && !page.contains(" href=") && !page.contains("src=\"http"));
    }
}
