//! A definition as a picture: as Mermaid's text, and as an SVG that needs nothing else.
//!
//! Every state is drawn, and every transition that an event may make; what is ignored or unexpected is not. The same definition gives
//! the same bytes.

mod layers;
mod layout;
mod mermaid;
mod order;
mod place;
mod state;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use crate::definition::Definition;

/// What is shown beside the definition itself.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Behind the name of a state, say how many instances are in it.
    pub counts: BTreeMap<String, String>,
    /// The transitions that an instance has made; nothing is where it began.
    pub walked: BTreeSet<(Option<String>, String)>,
    /// The state that it is in.
    pub here: Option<String>,
    /// It is part of a page that has [`STYLE`] among its own styles.
    pub is_part: bool,
}

/// The styles of a picture.
pub const STYLE: &str = include_str!("style.css");

/// The events that lead from a state to a state; to the same, where they are handled and it stays.
struct Transition<'a> {
    /// None, where there is no instance yet.
    from: Option<&'a str>,
    to: &'a str,
    events: Vec<&'a str>,
}

impl Transition<'_> {
    fn is_loop(&self) -> bool {
        self.from == Some(self.to)
    }
}

impl Definition {
    /// A `stateDiagram-v2` of Mermaid.
    pub fn mermaid(&self) -> String {
        mermaid::draw(self)
    }

    /// An SVG, for light and for dark.
    pub fn svg(&self, picture: &Picture) -> String {
        svg::draw(self, picture)
    }

    /// All that is drawn between states, in the order of the states as they are listed.
    fn transitions(&self) -> Vec<Transition<'_>> {
        let states = self.states.iter().map(String::as_str);
        std::iter::once(None).chain(states.map(Some)).flat_map(|from| self.transitions_from(from)).collect()
    }

    fn transitions_from<'a>(&'a self, from: Option<&'a str>) -> Vec<Transition<'a>> {
        let mut events_to: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for event in &self.events {
            for to in self.targets(from, event) {
                events_to.entry(to).or_default().push(event);
            }
        }
        let listed = self.states.iter().filter_map(|state| events_to.remove_entry(state.as_str()));
        listed.map(|(to, events)| Transition { from, to, events }).collect()
    }
}
