//! The text of a `stateDiagram-v2`. A state whose name Mermaid could misread has a separate id, and its name as the description.

use std::collections::BTreeMap;

use super::Transition;
use crate::definition::Definition;

/// Words that Mermaid interprets differently, in upper or lower case, and ids that it uses itself.
const RESERVED: &str = "accdescr acctitle class classdef click default direction end note root_end root_start scale state statediagram style";
const OUTSIDE: &str = "[*]";

pub(super) fn draw(definition: &Definition) -> String {
    let ids = ids(&definition.states);
    let id = |state: &str| ids[state].as_str();
    let mut lines = vec!["stateDiagram-v2".to_owned()];
    lines.extend(definition.states.iter().map(|state| declaration(state, id(state))));
    for Transition { from, to, events } in definition.transitions() {
        let label = events.into_iter().map(label).collect::<Vec<_>>().join("<br/>");
        lines.push(format!("    {} --> {}: {label}", from.map_or(OUTSIDE, id), id(to)));
    }
    let terminal = definition.states.iter().filter(|state| definition.is_terminal(state));
    lines.extend(terminal.map(|state| format!("    {} --> {OUTSIDE}", id(state))));
    let unreached = definition.states.iter().filter(|state| definition.unreached.contains(*state));
    let unreached: Vec<String> = unreached.map(|state| format!("    class {} unreached", id(state))).collect();
    if !unreached.is_empty() {
        lines.push("    classDef unreached stroke-dasharray: 5 4".to_owned());
        lines.extend(unreached);
    }
    lines.join("\n") + "\n"
}

fn declaration(state: &str, id: &str) -> String {
    match state == id {
        true => format!("    {state}"),
        false => format!("    state \"{state}\" as {id}"),
    }
}

/// A colon would end the label.
fn label(event: &str) -> String {
    event.replace(':', "#58;")
}

fn ids(states: &[String]) -> BTreeMap<&str, String> {
    let id = |(number, state): (usize, &String)| match is_plain(state) {
        true => state.clone(),
        false => free_id(number + 1, states),
    };
    states.iter().enumerate().map(|numbered| (numbered.1.as_str(), id(numbered))).collect()
}

fn is_plain(name: &str) -> bool {
    let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_word && RESERVED.split(' ').all(|reserved| !name.eq_ignore_ascii_case(reserved))
}

/// An id that is no state's name.
fn free_id(number: usize, states: &[String]) -> String {
    let mut id = format!("s{number}");
    while states.contains(&id) {
        id.push('_');
    }
    id
}
