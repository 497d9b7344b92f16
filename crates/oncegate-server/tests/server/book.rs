//! The book and the README: every block that is marked as runnable is run, and every link leads somewhere.
//!
//! A fenced block is marked by the words behind its language: `sh run`, `toml run file=NAME` (written into the folder), and directly
//! behind a command `json answer` or `text answer`. The doctests of the library run `rust run`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::support::{Client, Home, Server};

/// The time-out of one block.
const WITHIN: Duration = Duration::from_secs(90);
/// The server's port in the book, and those of what blocks start themselves.
const PORTS: [&str; 5] = ["4600", "4611", "4612", "4613", "4614"];

struct Page {
    /// Its path in the repository.
    name: String,
    text: String,
}

struct Block {
    line: usize,
    /// The words behind the fence: a language, and what to do with the block.
    words: Vec<String>,
    text: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate is in the repository")
}

/// The Markdown files among these, and in these folders.
fn pages(names: &[&str]) -> Vec<Page> {
    let root = repository();
    let mut waiting: Vec<PathBuf> = names.iter().map(|name| root.join(name)).collect();
    let mut pages = vec![];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("readable").path()));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.strip_prefix(&root).expect("in the repository").to_str().expect("text").to_owned();
            pages.push(Page { name, text: fs::read_to_string(&path).expect("text") });
        }
    }
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    pages
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = vec![];
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (open.take(), line.strip_prefix("```")) {
            (None, Some(info)) => {
                let words = info.split_whitespace().map(str::to_owned).collect();
                open = Some(Block { line: number + 1, words, text: String::new() });
            }
            (Some(block), Some(_)) => blocks.push(block),
            (Some(mut block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    blocks
}

#[test]
#[ignore = "needs curl, jq and Python: run make test"]
fn every_runnable_block_gives_the_answer_behind_it() {
    let pages = Mutex::new(pages(&["README.md", "docs"]));
    let done = Mutex::new((0, vec![]));
    let work = || {
        loop {
            let Some(page) = pages.lock().expect("no panic").pop() else { return };
            let (run, faults) = run_page(&page);
            let mut done = done.lock().expect("no panic");
            done.0 += run;
            done.1.extend(faults);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let (run, faults) = done.into_inner().expect("no panic");
    println!("{run} blocks were run");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(run >= 100, "only {run} blocks");
}

/// Runs the blocks of a page beside a server of its own. Returns the number of commands, and what went wrong.
fn run_page(page: &Page) -> (usize, Vec<String>) {
    let blocks = blocks(&page.text);
    if !blocks.iter().any(|block| block.words.first().is_some_and(|word| word == "sh")) {
        return (0, vec![]);
    }
    let mut shells = Shells::start();
    let mut output: Option<String> = None;
    let (mut run, mut faults) = (0, vec![]);
    for block in &blocks {
        let words: Vec<&str> = block.words.iter().map(String::as_str).collect();
        let told = match words[..] {
            ["sh", "run"] => {
                run += 1;
                shells.run(&block.text).map(|printed| output = Some(printed))
            }
            ["toml", "run", file] => {
                let file = file.strip_prefix("file=").expect("file=NAME");
                fs::write(shells.home.path().join(file), shells.filled(&block.text)).expect("the folder is ours");
                output = None;
                Ok(())
            }
            [kind, "answer"] => match output.take() {
                None => Err("this answer follows no command, or one that failed".to_owned()),
                Some(printed) => compare(kind, &block.text, &printed),
            },
            _ => {
                output = None;
                Ok(())
            }
        };
        if let Err(fault) = told {
            output = None;
            faults.push(format!("{}:{}\n{}{fault}", page.name, block.line, block.text));
        }
    }
    (run, faults)
}

/// A folder with a server, in which blocks run.
struct Shells {
    home: Home,
    _server: Server,
    ports: BTreeMap<&'static str, u16>,
    /// The ids of the process groups. A block may leave processes behind.
    groups: Vec<Pid>,
}

impl Shells {
    fn start() -> Shells {
        let home = Home::new();
        fs::create_dir(home.path().join(".bin")).expect("the folder is ours");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_oncegate"), home.path().join(".bin/oncegate")).expect("a link");
        let server = home.serve();
        // All are bound at once, so that they are different.
        let bound = PORTS.map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let free = bound.iter().map(|bound| bound.local_addr().expect("an address").port());
        let mut ports: BTreeMap<_, _> = PORTS.into_iter().zip(free).collect();
        ports.insert(PORTS[0], server.address.port());
        Shells { home, _server: server, ports, groups: vec![] }
    }

    /// The text with the ports of this page.
    fn filled(&self, text: &str) -> String {
        let mut filled = String::new();
        let mut number = String::new();
        for c in text.chars().chain(['\n']) {
            if c.is_ascii_digit() {
                number.push(c);
                continue;
            }
            match self.ports.get(number.as_str()) {
                Some(port) => filled += &port.to_string(),
                None => filled += &number,
            }
            number.clear();
            filled.push(c);
        }
        filled
    }

    /// Runs a block, and returns what it printed.
    fn run(&mut self, text: &str) -> Result<String, String> {
        let file = |name: &str| fs::File::create(self.home.path().join(name)).expect("the folder is ours");
        let path = format!("{}/.bin:{}", self.home.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut command = self.home.program("bash");
        command.args(["-e", "-o", "pipefail", "-c", &self.filled(text)]).env("PATH", path).process_group(0);
        // Files: what a block leaves running would keep a pipe open.
        command.stdin(Stdio::null()).stdout(file(".stdout")).stderr(file(".stderr"));
        let mut shell = command.spawn().expect("bash is installed");
        self.groups.push(Pid::from_child(&shell));
        let ended = ended(&mut shell);
        let read = |name: &str| fs::read_to_string(self.home.path().join(name)).expect("text");
        let (printed, said) = (read(".stdout"), read(".stderr"));
        if ended == "exit status: 0" { Ok(printed) } else { Err(format!("{ended}\n{printed}{said}")) }
    }
}

impl Drop for Shells {
    fn drop(&mut self) {
        for group in &self.groups {
            // Most groups have ended.
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
}

fn ended(shell: &mut Child) -> String {
    let deadline = Instant::now() + WITHIN;
    while Instant::now() < deadline {
        if let Some(status) = shell.try_wait().expect("the process is ours") {
            return status.to_string();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = shell.kill();
    let _ = shell.wait();
    format!("it did not end within {WITHIN:?}")
}

/// Whether the output is of the answer's shape: what differs on each run may differ.
fn compare(kind: &str, answer: &str, printed: &str) -> Result<(), String> {
    if kind == "text" {
        let (answer, printed) = (masked(answer), masked(printed));
        return if answer == printed { Ok(()) } else { Err(format!("it printed, with numbers masked:\n{printed}")) };
    }
    let answer: Value = serde_json::from_str(answer).map_err(|error| format!("the answer is not JSON: {error}"))?;
    let parsed = serde_json::from_str(printed).map_err(|error| format!("it is not JSON: {error}\n{printed}"))?;
    differs(&answer, &parsed).map_or(Ok(()), |what| Err(format!("{what}, it printed:\n{printed}")))
}

/// Where the second value is of another shape than the first.
fn differs(answer: &Value, printed: &Value) -> Option<String> {
    let inside = |place: String| move |what: String| format!("{place}.{what}");
    match (answer, printed) {
        (Value::Object(answer), Value::Object(printed)) => {
            let keys = |of: &serde_json::Map<String, Value>| of.keys().cloned().collect::<BTreeSet<_>>();
            let other: Vec<String> = keys(answer).symmetric_difference(&keys(printed)).cloned().collect();
            if !other.is_empty() {
                return Some(format!("only one has the keys {other:?}"));
            }
            answer.iter().find_map(|(key, value)| differs(value, &printed[key]).map(inside(key.clone())))
        }
        (Value::Array(answer), Value::Array(printed)) => {
            if answer.len() != printed.len() {
                return Some(format!("{} and {} elements", answer.len(), printed.len()));
            }
            let mut pairs = answer.iter().zip(printed).enumerate();
            pairs.find_map(|(at, (answer, printed))| differs(answer, printed).map(inside(at.to_string())))
        }
        (Value::Number(_), Value::Number(_)) => None,
        // Ids, times, and texts with numbers.
        (Value::String(answer), Value::String(_)) if answer.contains(|c: char| c.is_ascii_digit()) => None,
        (answer, printed) => (answer != printed).then(|| format!("{answer} is {printed}")),
    }
}

/// The text with a mark for each word that has a digit, and one space for several.
fn masked(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | ':' | '.');
    let mask = |word: &str| if word.contains(|c: char| c.is_ascii_digit()) { "<n>".into() } else { word.to_owned() };
    let mut masked = String::new();
    let mut word = String::new();
    for c in text.trim().chars().chain(['\n']) {
        if is_word(c) {
            word.push(c);
            continue;
        }
        masked += &mask(&std::mem::take(&mut word));
        if c != ' ' || !masked.ends_with(' ') {
            masked.push(c);
        }
    }
    masked
}

#[test]
fn an_answer_of_another_shape_is_noticed() {
    let differs = |answer: &str, printed: &str| compare("json", answer, printed).is_err();
    assert!(!differs(
        r#"{"id":"a1","n":1,"state":"done","of":[{"x":null}]}"#,
        r#"{"n":7,"id":"b","state":"done","of":[{"x":null}]}"#
    ));
    for (answer, printed) in [
        (r#"{"a":1}"#, r#"{"b":1}"#),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":"won"}"#, r#"{"a":"held"}"#),
        (r#"{"a":true}"#, r#"{"a":false}"#),
        (r#"{"a":["x"]}"#, r#"{"a":["x","x"]}"#),
        (r#"{"a":[{"b":null}]}"#, r#"{"a":[{"b":1}]}"#),
        ("{}", "no JSON"),
    ] {
        assert!(differs(answer, printed), "{answer} {printed}");
    }
    assert!(compare("text", "HTTP/1.1 201 Created\nid: 0af-1\n", "HTTP/1.1  409 Created\nid: 17\n").is_ok());
    assert!(compare("text", "one charge", "two charge").is_err());
    assert_eq!(masked("{'receipt': 'r-2'}, 3 of \"4\""), "{'receipt': '<n>'}, <n> of \"<n>\"\n");
}

#[test]
fn every_block_in_rust_is_compiled_with_the_library() {
    let library = fs::read_to_string(repository().join("crates/oncegate/src/lib.rs")).expect("text");
    for page in pages(&["README.md", "docs"]) {
        let is_rust = |block: &Block| block.words.iter().map(String::as_str).eq(["rust", "run"]);
        let name = page.name.rsplit('/').next().expect("a name");
        let is_included = library.contains(&format!("include_str!(\"../shared/{name}\")"));
        assert!(is_included || !blocks(&page.text).iter().any(is_rust), "{} is not among the doctests", page.name);
    }
}

const LINKING: [&str; 8] =
    ["README.md", "docs", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "crates", "examples"];

/// The links of a page, and the anchors of its headings as GitHub makes them.
fn links_and_anchors(text: &str) -> (Vec<String>, BTreeSet<String>) {
    let (mut links, mut anchors, mut heading) = (vec![], BTreeSet::new(), None);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => links.push(dest_url.to_string()),
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text.to_lowercase());
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let heading = heading.take().expect("it has begun").replace(' ', "-");
                let anchor = heading.replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "");
                let times = seen.entry(anchor.clone()).or_default();
                anchors.insert(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
                *times += 1;
            }
            _ => {}
        }
    }
    (links, anchors)
}

/// What is wrong with a link of a file.
fn broken(file: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { file.to_owned() } else { file.parent().expect("a folder").join(path) };
    let Ok(target) = target.canonicalize() else { return Some(format!("{link}: there is no such file")) };
    if !target.starts_with(repository()) {
        return Some(format!("{link}: leads out of the repository"));
    }
    let is_there = || links_and_anchors(&fs::read_to_string(&target).expect("text")).1.contains(anchor);
    (!anchor.is_empty() && !is_there()).then(|| format!("{link}: there is no such heading"))
}

#[test]
fn every_link_of_the_documents_leads_to_a_file_and_a_heading() {
    let mut faults = vec![];
    let mut checked = 0;
    // A folder `shared` has links to files that are checked at their own place.
    for page in pages(&LINKING)
        .into_iter()
        .filter(|page| !page.name.contains("/shared/") && !page.name.contains("node_modules"))
    {
        let file = repository().join(&page.name);
        let (links, _) = links_and_anchors(&page.text);
        checked += links.len();
        faults.extend(links.iter().filter_map(|link| Some(format!("{}: {}", page.name, broken(&file, link)?))));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(checked > 200, "only {checked} links");
}

#[test]
fn a_broken_link_is_noticed() {
    let file = repository().join("docs/start.md");
    assert_eq!(broken(&file, "glossary.md#claim"), None);
    for link in ["nothing.md", "glossary.md#nothing", "#nothing", "../../README.md"] {
        assert!(broken(&file, link).is_some(), "{link}");
    }
}

/// The values of these attributes.
fn attributes<'a>(html: &'a str, names: &[&str]) -> Vec<&'a str> {
    let of = |name: &&str| {
        let start = format!(" {name}=\"");
        html.match_indices(&start)
            .map(|(at, found)| html[at + found.len()..].split('"').next().expect("a part"))
            .collect()
    };
    names.iter().flat_map(|name| -> Vec<&str> { of(name) }).collect()
}

/// Follows all links of the dashboard and the book, from the first page on.
#[tokio::test]
async fn every_link_of_the_served_pages_leads_to_a_page_and_a_section() {
    let repository_url = format!("{}/blob/HEAD/", env!("CARGO_PKG_REPOSITORY"));
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    let mut links = BTreeSet::new();
    let mut waiting = vec!["/".to_owned()];
    while let Some(path) = waiting.pop() {
        if pages.contains_key(&path) {
            continue;
        }
        let answer = client.get(&path).await;
        assert_eq!(answer.status, 200, "{path}, linked from {:?}", links.iter().find(|(_, to)| to == &path));
        let is_html = answer.header("content-type").is_some_and(|media| media.starts_with("text/html"));
        let html = if is_html { answer.text } else { String::new() };
        for link in attributes(&html, &["href", "src"]) {
            if let Some(file) = link.strip_prefix(&repository_url) {
                let file = file.split('#').next().unwrap();
                assert!(repository().join(file).exists(), "{path}: {link}");
            }
            let link = if link.starts_with('#') { format!("{path}{link}") } else { link.replace("&amp;", "&") };
            if link.starts_with('/') {
                links.insert((path.clone(), link.clone()));
                waiting.push(link.split('#').next().unwrap().to_owned());
            }
        }
        pages.insert(path, html);
    }
    let without_section = links.iter().filter(|(_, link)| {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        !anchor.is_empty() && !attributes(&pages[path], &["id"]).contains(&anchor)
    });
    assert_eq!(without_section.collect::<Vec<_>>(), Vec::<&(String, String)>::new());
    let of_the_book = pages.keys().filter(|path| path.starts_with("/docs/"));
    assert!(of_the_book.count() > 40 && links.len() > 1000, "{} links", links.len());
}

#[tokio::test]
async fn a_page_of_the_book_is_found_named_and_kept() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let page = client.get("/docs/guides/charge-once").await.expect(200);
    assert!(page.text.contains("<title>Charge a card once · Oncegate</title>"), "{}", page.text);
    assert!(page.text.contains(r#"<a href="/docs/guides/charge-once" aria-current="page">"#));
    let etag = page.header("etag").expect("a tag").to_owned();
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    let picture = client.get("/docs/drill.svg").await.expect(200);
    assert!(picture.header("cache-control").is_some_and(|kept| kept.contains("immutable")), "{picture:?}");
    let mut knowing: Client = server.client().header("if-none-match", &etag);
    assert!(knowing.get("/docs/guides/charge-once").await.expect(304).text.is_empty());
    knowing.get("/docs/start").await.expect(200);
    for nothing in ["/docs/nothing", "/docs/../README.md", "/docs/start.md"] {
        let refused = client.get(nothing).await.expect(404);
        assert_eq!(refused.header("cache-control"), Some("no-store"), "{nothing}");
    }

    let found = client.get("/docs/search?q=fingerprint").await.expect(200).text;
    assert!(found.contains(r##"<a href="/docs/glossary#fingerprint">"##) && found.contains("<mark>"), "{found}");
    let none = client.get("/docs/search?q=%3Cscript%3Ealert(1)").await.expect(200).text;
    assert!(none.contains("No section has all of these words") && !none.contains("<script>alert"), "{none}");
    client.get(&format!("/docs/search?q={}", "x".repeat(5_000))).await.expect(200);
}
