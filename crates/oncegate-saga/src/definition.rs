//! A checked definition: it says for every state and event what happens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use crate::expr::Expr;
use crate::reads::Reads;
use crate::values::kind_of;

/// The name of the state of a saga that has no instance yet.
pub const NONE: &str = "none";

/// A saga that is ready to run. Made by [`Draft::check`](crate::Draft::check).
#[derive(Debug)]
pub struct Definition {
    pub(crate) name: String,
    pub(crate) doc: String,
    pub(crate) correlation: Expr,
    /// What all its expressions read together.
    pub(crate) reads: Reads,
    pub(crate) retention: Duration,
    pub(crate) events: Vec<String>,
    /// Without [`NONE`].
    pub(crate) states: Vec<String>,
    pub(crate) terminal: BTreeSet<String>,
    pub(crate) unreached: BTreeSet<String>,
    pub(crate) data: BTreeMap<String, Kind>,
    pub(crate) rows: Vec<Plan>,
    pub(crate) enter: BTreeMap<String, Plan>,
    pub(crate) s3: Vec<S3Rule>,
    /// The cell for each state, including [`NONE`], and each event.
    pub(crate) table: HashMap<String, HashMap<String, Cell>>,
}

/// What an event does in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// This row says what happens.
    Handled(usize),
    /// The event changes nothing.
    Ignored,
    /// The event goes to the dead letters.
    Unexpected,
}

/// The kind of a field of the data. A field that was never set is empty if it is a list or a map, otherwise null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    String,
    /// A number, whole or not.
    Number,
    /// `true` or `false`.
    Bool,
    /// A list of any values.
    List,
    /// A map from names to any values.
    Map,
    /// Any value.
    Any,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] = [Kind::String, Kind::Number, Kind::Bool, Kind::List, Kind::Map, Kind::Any];

    /// The name of the kind, as an author writes it in TOML.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Number => "number",
            Kind::Bool => "bool",
            Kind::List => "list",
            Kind::Map => "map",
            Kind::Any => "any",
        }
    }

    pub(crate) fn empty(self) -> Value {
        match self {
            Kind::List => json!([]),
            Kind::Map => json!({}),
            Kind::String | Kind::Number | Kind::Bool | Kind::Any => Value::Null,
        }
    }

    /// Checks a value of a field against this kind.
    pub(crate) fn check(self, field: &str, value: &Value) -> Result<(), String> {
        let fits = match (self, value) {
            (Kind::Any, _) | (_, Value::Null) => true,
            (Kind::String, value) => value.is_string(),
            (Kind::Number, value) => value.is_number(),
            (Kind::Bool, value) => value.is_boolean(),
            (Kind::List, value) => value.is_array(),
            (Kind::Map, value) => value.is_object(),
        };
        match fits {
            true => Ok(()),
            false => Err(format!("`{field}` is a {}; this is {}", self.as_str(), kind_of(value))),
        }
    }
}

/// What happens on an event, ready to run.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub condition: Option<Expr>,
    pub take: Vec<String>,
    pub fill: Vec<String>,
    pub set: Vec<(String, Expr)>,
    pub require: Option<Required>,
    pub send: Vec<Sent>,
    pub schedule: Vec<Scheduled>,
    pub unschedule: Vec<String>,
    pub to: Option<String>,
    pub branches: Vec<Plan>,
}

#[derive(Debug)]
pub(crate) struct Required {
    pub fields: Vec<String>,
    pub otherwise: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Sent {
    pub command: String,
    pub each: Option<Expr>,
    pub payload: Option<Fields>,
}

#[derive(Debug)]
pub(crate) struct Scheduled {
    pub event: String,
    pub due: Due,
    pub data: Fields,
}

#[derive(Debug)]
pub(crate) enum Due {
    After(Duration),
    At(Box<Expr>),
}

pub(crate) type Fields = Vec<(String, Expr)>;

#[derive(Debug)]
pub(crate) struct S3Rule {
    pub condition: Option<Expr>,
    pub event: String,
    pub data: Fields,
}

impl Definition {
    /// The name of the saga.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description for people. It is empty if the author gives none.
    pub fn doc(&self) -> &str {
        &self.doc
    }

    /// How long an instance stays in its terminal state before it is removed.
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// The names of the events that the saga knows.
    pub fn events(&self) -> &[String] {
        &self.events
    }

    /// Without [`NONE`].
    pub fn states(&self) -> &[String] {
        &self.states
    }

    /// Whether an instance is complete in this state.
    pub fn is_terminal(&self, state: &str) -> bool {
        self.terminal.contains(state)
    }

    /// Whether S3 notifications become events of this saga.
    pub fn takes_s3(&self) -> bool {
        !self.s3.is_empty()
    }

    /// The commands that this saga may send.
    pub fn commands(&self) -> BTreeSet<&str> {
        let plans = self.rows.iter().chain(self.enter.values());
        let sent = plans.flat_map(|plan| std::iter::once(plan).chain(&plan.branches)).flat_map(|plan| &plan.send);
        sent.map(|sent| sent.command.as_str()).collect()
    }

    /// What an event does in a state; `None` means that there is no instance.
    pub fn cell(&self, state: Option<&str>, event: &str) -> Option<Cell> {
        self.table.get(state.unwrap_or(NONE))?.get(event).copied()
    }

    /// The states that an event may lead to from a state, including the same state if the instance may stay.
    pub fn targets<'a>(&'a self, state: Option<&'a str>, event: &str) -> BTreeSet<&'a str> {
        match self.cell(state, event) {
            Some(Cell::Handled(row)) => {
                self.ways(&self.rows[row], state.unwrap_or(NONE)).into_iter().map(|way| way.to).collect()
            }
            _ => BTreeSet::new(),
        }
    }
}
