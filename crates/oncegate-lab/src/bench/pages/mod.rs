//! The dashboard's pages on a store with a million claims. Measures how long each takes, against a limit that feels instant.

mod fill;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use oncegate::store::MainStore;
use oncegate_postgres::{Options, PostgresStore};
use oncegate_sqlite::SqliteStore;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::http::{Client, post};
use super::sagas::SEARCH_IMPORT;
use super::{Setting, postgres};
use oncegate_http::reminders;
use oncegate_http::sends;
use oncegate_process::child::Served;
use oncegate_process::failure::Failure;
use oncegate_process::output::table;

const FETCHES: usize = 20;
const LIMIT: Duration = Duration::from_millis(200);
/// How many times to follow `Older`, to a page that is rarely opened.
const DEEP: usize = 20;
/// Duplicates that are stopped before the measurement, so that the decisions' page is full.
const STOPPED: usize = 1_000;
/// How many pages are left open at once.
const FOLLOWERS: usize = 20;
const SETTLED_WITHIN: Duration = Duration::from_secs(300);
/// A separate database, because the server expects its tables in their usual place.
const DATABASE: &str = "oncegate_bench_pages";

/// Lists; the values of their filters are taken from them.
const LISTS: [&str; 9] = [
    "/decisions",
    "/claims",
    "/messages",
    "/actions",
    "/sagas",
    "/sagas/search-import",
    "/dead-letters",
    "/sends",
    "/reminders",
];
/// Filters that a user types.
const WRITTEN: [&str; 20] = [
    "/decisions?guard=charge",
    "/claims?guard=charge",
    "/claims?guard=rare",
    "/claims?guard=nobody",
    "/claims?guard=rare&state=failed",
    "/claims?guard=charge&state=failed",
    "/claims?guard=charge&state=in_flight",
    "/claims?guard=rare&state=unknown",
    "/actions?type=crm%3Async",
    "/actions?type=rare",
    "/actions?type=nobody",
    "/actions?type=crm%3Async&status=dead",
    "/actions?type=rare&status=pending",
    "/actions?entityId=lead%2050000",
    "/actions?entityId=nobody",
    "/dead-letters?saga=search-import",
    "/sends?campaign=spring",
    "/sends?campaign=rare",
    "/sends?campaign=spring&state=unknown",
    "/reminders?booking=booking%205",
];
/// For each kind of record, the list that contains one, and how its path begins.
const ONE_OF_EACH: [(&str, &str); 10] = [
    ("/claims", "/claims/"),
    ("/messages", "/messages/"),
    ("/messages", "/threads/"),
    ("/leads", "/leads/"),
    ("/actions", "/actions/"),
    ("/actions?status=completed", "/actions/"),
    ("/sagas/search-import", "/sagas/search-import/"),
    ("/dead-letters", "/dead-letters/"),
    ("/sends", "/sends/"),
    ("/reminders", "/reminders/"),
];

/// A page, and how long it took.
#[derive(Serialize)]
pub struct Looked {
    store: &'static str,
    page: String,
    p50_ms: f64,
    max_ms: f64,
}

pub async fn measure(setting: &Setting) -> Result<Vec<Looked>, Failure> {
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed}]").expect("the template is right"),
    );
    let mut looked = vec![];
    let sqlite = setting.folder.join("pages.db");
    let store = format!("sqlite:{}", sqlite.display());
    bar.println("filling SQLite");
    full(Arc::new(SqliteStore::open(&sqlite, Default::default())?), &bar).await?;
    looked.extend(on("SQLite", &store, &setting.folder, &bar).await?);
    if let Some(url) = &setting.postgres {
        let control = postgres::connect(url).await?;
        let drop_database = format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)");
        control.batch_execute(&drop_database).await.map_err(postgres::failed)?;
        control.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await.map_err(postgres::failed)?;
        let mut own = url::Url::parse(url).map_err(|error| Failure::usage(format!("--postgres: {error}")))?;
        own.set_path(DATABASE);
        bar.println("filling PostgreSQL");
        full(Arc::new(PostgresStore::open(own.as_str(), Options::default()).await?), &bar).await?;
        looked.extend(on("PostgreSQL", own.as_str(), &setting.folder, &bar).await?);
        control.batch_execute(&drop_database).await.map_err(postgres::failed)?;
    }
    bar.finish_and_clear();
    Ok(looked)
}

async fn full(store: Arc<dyn MainStore>, bar: &ProgressBar) -> Result<(), Failure> {
    fill::fill(store.clone(), bar).await?;
    store.close().await;
    Ok(())
}

pub fn text(looked: &[Looked]) -> String {
    let limit = LIMIT.as_secs_f64() * 1000.0;
    let over = |page: &&Looked| page.max_ms > limit;
    let rows = looked.iter().map(|page| {
        let mark = if over(&page) { "over" } else { "" };
        [page.store.into(), page.page.clone(), ms(page.p50_ms), ms(page.max_ms), mark.into()]
    });
    let pages = table(["STORE", "PAGE", "P50 ms", "MAX ms", "LIMIT 200"], rows);
    let slowest = looked.iter().max_by(|a, b| a.max_ms.total_cmp(&b.max_ms));
    let slowest =
        slowest.map_or(String::new(), |page| format!("{} on {}, {} ms", page.page, page.store, ms(page.max_ms)));
    format!(
        "{pages}\n\n{} pages, {} over the limit; the slowest: {slowest}",
        looked.len(),
        looked.iter().filter(over).count()
    )
}

fn ms(ms: f64) -> String {
    format!("{ms:.1}")
}

async fn on(name: &'static str, store: &str, folder: &Path, bar: &ProgressBar) -> Result<Vec<Looked>, Failure> {
    let broken = |error: std::io::Error| Failure::new(format!("{name}: {error}"));
    let home = folder.join(name);
    std::fs::create_dir_all(&home).map_err(broken)?;
    std::fs::write(home.join("search-import.toml"), SEARCH_IMPORT).map_err(broken)?;
    std::fs::write(home.join("oncegate.toml"), "[sagas]\nfiles = [\"search-import.toml\"]\n").map_err(broken)?;
    bar.set_message("starting the server");
    let served = Served::start(&["serve", "--listen", "127.0.0.1:0", "--store", store], &home, &[]).await?;
    let served = served.ok_or_else(|| Failure::new("serve has ended"))?;
    let mut visitor =
        Visitor { client: Client::connect(served.address).await.map_err(broken)?, address: served.address };
    bar.set_message("the server sees to what is due");
    visitor.settled().await.map_err(broken)?;
    visitor.stopped().await.map_err(broken)?;
    let pages = visitor.pages().await.map_err(broken)?;
    let mut looked = vec![];
    bar.set_length(pages.len() as u64);
    for (number, page) in pages.into_iter().enumerate() {
        bar.set_position(number as u64);
        bar.set_message(page.clone());
        let mut took = vec![];
        for _ in 0..FETCHES {
            let asked = Instant::now();
            visitor.get(&page).await.map_err(broken)?;
            took.push(asked.elapsed());
        }
        looked.push(Looked::of(name, page, took));
    }
    bar.set_message("pages that are left open");
    looked.extend(open(name, served.address).await.map_err(broken)?);
    served.kill().await;
    Ok(looked)
}

impl Looked {
    fn of(store: &'static str, page: String, mut took: Vec<Duration>) -> Looked {
        took.sort_unstable();
        let ms = |took: Duration| took.as_secs_f64() * 1000.0;
        Looked { store, page, p50_ms: ms(took[took.len() / 2]), max_ms: ms(took[took.len() - 1]) }
    }
}

/// A user with a browser.
struct Visitor {
    client: Client,
    address: SocketAddr,
}

impl Visitor {
    async fn get(&mut self, path: &str) -> std::io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        let asked = self.client.ask(request.as_bytes()).await;
        asked.map_err(|error| std::io::Error::other(format!("{path}: {error}")))?;
        Ok(String::from_utf8_lossy(self.client.answer()).into_owned())
    }

    /// Waits until the server has sent or missed each due reminder, and has noticed the sends whose workers are gone.
    async fn settled(&mut self) -> std::io::Result<()> {
        let give_up_at = Instant::now() + SETTLED_WITHIN;
        loop {
            let metrics = self.get("/metrics").await?;
            let count = |name: &str, events: &[&str]| -> usize {
                let lines = metrics.lines().filter(|line| line.starts_with(name));
                let lines = lines.filter(|line| events.iter().any(|event| line.contains(&format!("\"{event}\""))));
                lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
            };
            let reminded = count(reminders::Event::COUNTER, &["reminder.sent", "reminder.missed"]);
            let lost = count(sends::COUNTER, &["send.unknown"]);
            if reminded >= fill::REMINDERS_DUE && lost >= fill::SENDS_LOST {
                return Ok(());
            }
            if Instant::now() > give_up_at {
                return Err(std::io::Error::other(format!(
                    "{reminded} reminders and {lost} sends were seen to, and no more"
                )));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Sends many late duplicates.
    async fn stopped(&mut self) -> std::io::Result<()> {
        for number in 0..STOPPED {
            // Some of the newest claims, each a few times, so that their pages have content.
            let (key, part) = fill::claim_key(fill::CLAIMS - 1 - number % 100);
            let body = serde_json::json!({"guard": key.guard.as_str(), "key": [part]}).to_string();
            self.client.ask(&post(self.address, "/api/claims", &body)).await?;
        }
        // Duplicates are recorded once a second.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    /// All pages: each list, with each value of its filters, its second page, a page far behind it, and one of its entries.
    async fn pages(&mut self) -> std::io::Result<Vec<String>> {
        let mut pages: Vec<String> =
            ["/", "/?range=day", "/?range=week", "/leads", "/docs", "/problems/in-flight", "/login", "/assets/app.css"]
                .map(str::to_owned)
                .into();
        for list in LISTS {
            let first = self.get(list).await?;
            pages.push(list.to_owned());
            pages.extend(chosen(list, &first));
        }
        let (claim, part) = fill::claim_key(fill::CLAIMS - 1);
        pages.extend(WRITTEN.map(str::to_owned));
        let mut older = vec![];
        for list in pages.iter().filter(|page| page.matches('/').count() < 3) {
            let mut page = list.clone();
            for followed in 1..=DEEP {
                let Some(next) = next(&self.get(&page).await?) else { break };
                page = next;
                if [1, DEEP].contains(&followed) {
                    older.push(page.clone());
                }
            }
        }
        pages.extend(older);
        for (list, path) in ONE_OF_EACH {
            let first = self.get(list).await?;
            let missing = || std::io::Error::other(format!("{list} leads to nothing"));
            let one = links(&first).find(|link| link.starts_with(path)).ok_or_else(missing)?;
            let id = one[path.len()..].split('?').next().unwrap_or_default().to_owned();
            pages.push(one);
            pages.push(format!("/search?q={id}"));
        }
        let (id, guarded) = (claim.id.to_string(), format!("{} {part}", claim.guard));
        let searched = [
            "",
            &id,
            &part,
            &guarded,
            "+15550000007",
            "lead7@example.com",
            "spring",
            "booking 7",
            "lead 50000",
            "search 7",
            "nothing of that name",
        ];
        pages.extend(searched.map(|text| format!("/search?q={}", utf8_percent_encode(text, NON_ALPHANUMERIC))));
        Ok(pages)
    }
}

/// The list filtered by each value that its filters offer.
fn chosen(list: &str, html: &str) -> Vec<String> {
    let mut chosen = vec![];
    for select in html.split("<select name=\"").skip(1) {
        let name = select.split('"').next().unwrap_or_default();
        let options = select.split("</select>").next().unwrap_or_default().split("<option").skip(1);
        let values = options.filter_map(|option| option.split_once('>')?.1.split('<').next());
        chosen.extend(values.filter(|value| *value != "any").map(|value| format!("{list}?{name}={value}")));
    }
    chosen
}

fn links(html: &str) -> impl Iterator<Item = String> {
    let links = html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    links.map(|link| link.replace("&#38;", "&").replace("&amp;", "&"))
}

/// The target of `Older`.
fn next(html: &str) -> Option<String> {
    links(&html[html.find("rel=\"next\"")?..]).next()
}

/// Pages that many visitors have open at once. Measures how late each of their parts first arrives after its time.
async fn open(name: &'static str, address: SocketAddr) -> std::io::Result<Vec<Looked>> {
    const PARTS: [(&str, Duration); 3] = [
        ("decisions", Duration::from_millis(500)),
        ("numbers", Duration::from_secs(2)),
        ("chart", Duration::from_secs(10)),
    ];
    let late = try_join_all((0..FOLLOWERS).map(|_| async move {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /live?on=overview&range=week HTTP/1.1\r\nhost: {address}\r\n\r\n");
        let asked = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let (mut heard, mut late) = (vec![], vec![]);
        for (part, due) in PARTS {
            let event = format!("event: {part}\n");
            while !heard.windows(event.len()).any(|some| some == event.as_bytes()) {
                if stream.read_buf(&mut heard).await? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
            late.push(asked.elapsed().saturating_sub(due));
        }
        Ok::<_, std::io::Error>(late)
    }))
    .await?;
    let part = |(number, (part, _)): (usize, (&str, Duration))| {
        let page = format!("/live?on=overview&range=week: {part}, {FOLLOWERS} followers, after its time");
        Looked::of(name, page, late.iter().map(|late| late[number]).collect())
    };
    Ok(PARTS.into_iter().enumerate().map(part).collect())
}
