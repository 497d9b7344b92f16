//! Within each crate, the modules depend on each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules at the top of a crate, each with the modules that it names.
type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_crate_has_a_cycle_between_its_modules() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is among the crates");
    let mut modules = 0;
    for entry in fs::read_dir(crates).expect("a folder") {
        let source = entry.expect("readable").path().join("src");
        if !source.is_dir() {
            continue;
        }
        let graph = graph(&source);
        modules += graph.len();
        if let Some(cycle) = cycle(&graph) {
            panic!("{}: {}", source.display(), cycle.join(" -> "));
        }
    }
    assert!(modules > 100, "only {modules} modules were read");
}

#[test]
fn a_cycle_is_found() {
    let graph = |uses: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (module, used) in uses {
            graph.entry((*module).into()).or_default().extend(named(used));
        }
        graph
    };
    assert_eq!(cycle(&graph(&[("a", "use crate::b::B;"), ("b", "use crate::{c, d};"), ("c", "fn f() {}")])), None);
    let found = cycle(&graph(&[("a", "use crate::b::B;"), ("b", "crate::c::f();"), ("c", "use crate::{x, a::A};")]));
    assert_eq!(found.unwrap(), ["a", "b", "c", "a"]);
    assert_eq!(cycle(&graph(&[("a", "use crate::b::B;"), ("b", "// see crate::a")])), None);
}

fn graph(source: &Path) -> Graph {
    let entries = fs::read_dir(source).expect("a folder").map(|entry| entry.expect("readable").path());
    let named_so = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        let is_root = ["lib", "main"].contains(&name.as_str());
        let is_module = path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
        (!is_root && is_module).then_some((name, path))
    };
    let mut graph = Graph::new();
    for (name, path) in entries.filter_map(named_so) {
        let uses = graph.entry(name).or_default();
        for file in files(&path) {
            uses.extend(named(&fs::read_to_string(file).expect("text")));
        }
    }
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for (name, uses) in &mut graph {
        uses.retain(|used| used != name && modules.contains(used));
    }
    graph
}

/// The source files of a module, without files of tests.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder");
        return entries.flat_map(|entry| files(&entry.expect("readable").path())).collect();
    }
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    if is_source && !path.ends_with("tests.rs") { vec![path.to_owned()] } else { vec![] }
}

/// The names after `crate::` in the code, without comments and the tests at the end of a file.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text
        .split("#[cfg(test)]\nmod tests")
        .take(1)
        .flat_map(str::lines)
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            Some(list) => {
                let list = list.split("};").next().unwrap_or_default();
                names.extend(top_level(list).into_iter().map(first_word));
            }
            None => _ = names.insert(first_word(after)),
        }
    }
    names
}

/// The items of a list, by the commas outside of inner braces.
fn top_level(list: &str) -> Vec<&str> {
    let mut depth = 0;
    list.split(|letter| {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .collect()
}

fn first_word(text: &str) -> String {
    text.trim().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

/// The modules of a cycle, the first one again at the end.
fn cycle(graph: &Graph) -> Option<Vec<String>> {
    let mut done = BTreeSet::new();
    graph.keys().find_map(|name| cycle_from(graph, name, &mut vec![], &mut done))
}

fn cycle_from<'g>(
    graph: &'g Graph,
    name: &'g String,
    path: &mut Vec<&'g String>,
    done: &mut BTreeSet<&'g String>,
) -> Option<Vec<String>> {
    if let Some(start) = path.iter().position(|before| *before == name) {
        return Some(path[start..].iter().chain([&name]).map(|module| (*module).clone()).collect());
    }
    if !done.insert(name) {
        return None;
    }
    path.push(name);
    let found = graph.get(name).into_iter().flatten().find_map(|used| cycle_from(graph, used, path, done));
    path.pop();
    found
}
