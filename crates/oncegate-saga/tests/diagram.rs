//! Diagrams match the definition: no transition is missing, none is drawn twice.

use std::collections::BTreeSet;

use oncegate_saga::{Definition, Draft, Effects, FieldKind, Picture};

fn search_import() -> Definition {
    let text = include_str!("../../../sagas/search-import.toml");
    Draft::read("search-import.toml", text).and_then(Draft::check).expect("the example is sound")
}

/// A definition with a cycle, and with names that other languages misread.
fn odd_names() -> Definition {
    Draft::new("odd:names")
        .correlation("event.data.id")
        .events(["order:paid", "retry-later", "Closed"])
        .states(["order.open", "s1", "State", "3:done", "left-over"])
        .terminal(["3:done"])
        .unreached(["left-over"])
        .data("tries", FieldKind::Number)
        .on("none", "order:paid", Effects::default().to("order.open"))
        .on("order.open", "order:paid, Closed", Effects::default().to("s1"))
        .on("s1", "retry-later", Effects::default().to("order.open"))
        .on("s1", "Closed", Effects::default().to("State"))
        .on("State", "retry-later", Effects::default().set("tries", "1"))
        .on("State", "Closed", Effects::default().to("3:done"))
        .on("left-over", "Closed", Effects::default().to("3:done"))
        .ignore("order.open", "retry-later")
        .ignore("s1, State", "order:paid")
        .ignore("left-over", "order:paid, retry-later")
        .ignore("3:done", "*")
        .unexpected("none", "retry-later, Closed")
        .check()
        .expect("odd, but sound")
}

fn nobody() -> Picture {
    Picture::default()
}

/// From, to and event of each possible transition, according to the definition.
fn transitions(definition: &Definition) -> Vec<(String, String, String)> {
    let states = definition.states().iter().map(|state| Some(state.as_str()));
    let pairs =
        std::iter::once(None).chain(states).flat_map(|from| definition.events().iter().map(move |on| (from, on)));
    let found = pairs.flat_map(|(from, event)| {
        definition
            .targets(from, event)
            .into_iter()
            .map(move |to| (from.unwrap_or("none").to_owned(), to.to_owned(), event.clone()))
            .collect::<Vec<_>>()
    });
    sorted(found.collect())
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort();
    items
}

/// The text between the first occurrences of two strings.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    Some(text.split_once(start)?.1.split_once(end)?.0)
}

/// From, to and event of each drawn transition.
fn drawn(svg: &str) -> Vec<(String, String, String)> {
    let mut drawn = vec![];
    for group in svg.split("<g ").skip(1).filter_map(|group| group.split("</g>").next()) {
        // The events in a state's own group leave that state unchanged.
        let state = between(group, "data-state=\"", "\"");
        let from = between(group, "data-from=\"", "\"").or(state).expect("a group says whose it is");
        let to = between(group, "data-to=\"", "\"").or(state).expect("a group says whose it is");
        for text in group.split("<text class=\"event\"").skip(1) {
            let event = between(text, ">", "<").expect("a text has an end");
            drawn.push((from.to_owned(), to.to_owned(), event.to_owned()));
        }
    }
    sorted(drawn)
}

/// Panics unless every opened tag is closed, in the right order.
fn assert_balanced(svg: &str) {
    let mut open = vec![];
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('&') || text.contains(';'), "not escaped: {text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "a quote is left open in {tag}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "closed out of order"),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().expect("a tag has a name")),
        }
    }
    assert!(open.is_empty(), "still open: {open:?}");
}

#[test]
fn mermaid_has_every_transition_of_search_import_once() {
    let expected = "\
stateDiagram-v2
    Uploading
    Uploaded
    Parsing
    Completed
    Error
    [*] --> Uploading: SearchUploadStarted
    [*] --> Parsing: SearchUploadSaved
    [*] --> Error: SearchUploadSaved
    Uploading --> Uploading: SearchUploadStarted
    Uploading --> Parsing: SearchUploadSaved
    Uploading --> Error: SearchUploadSaved<br/>UploadTimeout
    Uploaded --> Uploaded: SearchUploadStarted
    Parsing --> Parsing: SearchUploadStarted<br/>ReferenceFileParsingCompleted
    Parsing --> Completed: ReferenceFileParsingCompleted
    Parsing --> Error: ReferenceFileFaulted<br/>StartParsingFaulted
    Completed --> [*]
    Error --> [*]
    classDef unreached stroke-dasharray: 5 4
    class Uploaded unreached
";
    assert_eq!(search_import().mermaid(), expected);
}

#[test]
fn mermaid_never_sees_a_name_that_it_would_misread() {
    let expected = "\
stateDiagram-v2
    state \"order.open\" as s1_
    s1
    state \"State\" as s3
    state \"3:done\" as s4
    state \"left-over\" as s5
    [*] --> s1_: order#58;paid
    s1_ --> s1: order#58;paid<br/>Closed
    s1 --> s1_: retry-later
    s1 --> s3: Closed
    s3 --> s3: retry-later
    s3 --> s4: Closed
    s5 --> s4: Closed
    s4 --> [*]
    classDef unreached stroke-dasharray: 5 4
    class s5 unreached
";
    assert_eq!(odd_names().mermaid(), expected);
}

#[test]
fn the_svg_has_every_transition_once() {
    for definition in [search_import(), odd_names()] {
        assert_eq!(drawn(&definition.svg(&nobody())), transitions(&definition), "{}", definition.name());
    }
}

#[test]
fn the_svg_is_well_formed_and_needs_nothing_else() {
    for definition in [search_import(), odd_names()] {
        let svg = definition.svg(&nobody());
        assert_balanced(&svg);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
        let only_namespace = svg.replacen("http://www.w3.org/2000/svg", "", 1);
        for foreign in ["http", "href", "url(", "@import", "<script", "<image"] {
            assert!(!only_namespace.contains(foreign), "{foreign}");
        }
    }
}

#[test]
fn the_svg_speaks_to_those_who_cannot_see_it() {
    let svg = search_import().svg(&nobody());
    assert!(svg.contains("role=\"img\""));
    assert!(svg.contains("<title>The saga search-import</title>"));
    assert!(svg.contains("Uploading to Error on SearchUploadSaved, UploadTimeout; "));
}

#[test]
fn every_state_has_one_box_drawn_as_what_it_is() {
    let definition = search_import();
    let svg = definition.svg(&nobody());
    for state in definition.states() {
        let class = if state == "Uploaded" { "state unreached" } else { "state" };
        let group = format!("<g class=\"{class}\" data-state=\"{state}\">");
        assert_eq!(svg.matches(&group).count(), 1, "{state}");
        let drawn = between(&svg, &group, "</g>").unwrap();
        assert_eq!(drawn.contains("class=\"inner\""), definition.is_terminal(state), "{state}");
    }
}

#[test]
fn counts_are_shown_in_the_boxes_of_their_states() {
    let counts = [("Parsing", "12"), ("Error", "0"), ("Gone", "7<")];
    let counts = counts.map(|(state, count)| (state.to_owned(), count.to_owned())).into();
    let svg = search_import().svg(&Picture { counts, ..nobody() });
    assert_balanced(&svg);
    let count_in = |state: &str| {
        let group = between(&svg, &format!("data-state=\"{state}\">"), "</g>").unwrap();
        between(group.split_once("class=\"count\"")?.1, ">", "<")
    };
    assert_eq!(count_in("Parsing"), Some("12"));
    assert_eq!(count_in("Error"), Some("0"));
    assert_eq!(count_in("Completed"), None);
    assert_eq!(svg.matches("class=\"badge\"").count(), 2, "of a state that is not there nothing is shown");
    assert!(!search_import().svg(&nobody()).contains("class=\"badge\""));
}

#[test]
fn the_same_definition_gives_the_same_bytes() {
    // Each definition is built anew, so its tables are hashed anew.
    let svgs: BTreeSet<String> = (0..8).map(|_| odd_names().svg(&nobody())).collect();
    let texts: BTreeSet<String> = (0..8).map(|_| odd_names().mermaid()).collect();
    assert_eq!((svgs.len(), texts.len()), (1, 1));
}

#[test]
fn the_way_of_an_instance_is_marked() {
    let walked = [(None, "Uploading".to_owned())].into();
    let picture = Picture { walked, here: Some("Uploading".into()), is_part: true, ..nobody() };
    let svg = search_import().svg(&picture);
    assert_balanced(&svg);
    assert_eq!((svg.matches("class=\"arrow walked\"").count(), svg.matches(" here\"").count()), (1, 1));
    assert!(!svg.contains("<style>"), "a part of a page has the page's styles");
}
