//! Draws a definition as Mermaid text, and as a self-contained SVG.
//!
//! Draws every state, and every transition that an event may make, but no ignored or unexpected events. The same definition gives the
//! same bytes.

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
    /// A label after the name of a state, for example how many instances are in it.
    pub counts: BTreeMap<String, String>,
    /// The transitions that an instance has made. The first begins at `None`.
    pub walked: BTreeSet<(Option<String>, String)>,
    /// The current state of the instance.
    pub here: Option<String>,
    /// The picture is part of a page whose styles contain [`STYLE`].
    pub is_part: bool,
}

/// The styles of a picture.
pub const STYLE: &str = include_str!("style.css");

/// The events that lead from one state to another. Both are the same state if the events are handled and the instance stays.
struct Transition<'a> {
    /// `None` if there is no instance yet.
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

    /// An SVG for light and dark mode.
    pub fn svg(&self, picture: &Picture) -> String {
        svg::draw(self, picture)
    }

    /// All transitions to draw, in the order in which the states are listed.
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
