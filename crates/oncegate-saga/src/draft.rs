//! An unchecked definition, as an author writes it in TOML or Rust.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::defect::Defects;
use crate::definition::Kind;
use crate::span::{Names, Span};

/// A saga as an author writes it. [`Draft::check`] makes a [`Definition`](crate::Definition) of it.
///
/// ```
/// use oncegate_saga::{Draft, Effects};
///
/// let door = Draft::new("door")
///     .correlation("event.data.doorId")
///     .events(["Opened", "Closed"])
///     .states(["Open", "Shut"])
///     .terminal(["Shut"])
///     .on("none", "Opened", Effects::default().to("Open"))
///     .on("Open", "Closed", Effects::default().to("Shut"))
///     .ignore("Open", "Opened")
///     .ignore("Shut", "*")
///     .unexpected("none", "Closed")
///     .check();
/// assert!(door.is_ok());
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    pub(crate) name: Span<String>,
    #[serde(default)]
    pub(crate) doc: String,
    pub(crate) correlation: Option<Span<String>>,
    pub(crate) retention: Option<Span<String>>,
    #[serde(default)]
    pub(crate) events: Vec<Span<String>>,
    #[serde(default)]
    pub(crate) states: Vec<Span<String>>,
    #[serde(default)]
    pub(crate) terminal: Vec<Span<String>>,
    /// States that no row leads to: an earlier version of the definition may have left instances in them.
    #[serde(default)]
    pub(crate) unreached: Vec<Span<String>>,
    #[serde(default)]
    pub(crate) data: BTreeMap<String, Span<String>>,
    #[serde(default)]
    pub(crate) on: Vec<Span<Effects>>,
    #[serde(default)]
    pub(crate) ignore: Vec<Span<Pairs>>,
    #[serde(default)]
    pub(crate) unexpected: Vec<Span<Pairs>>,
    #[serde(default)]
    pub(crate) enter: BTreeMap<String, Span<Effects>>,
    #[serde(default)]
    pub(crate) s3: Vec<Span<S3>>,
    /// The file that the draft was read from, and its text.
    #[serde(skip)]
    pub(crate) source: Option<(String, String)>,
    /// States whose hooks were set twice, which is not possible in a file.
    #[serde(skip)]
    pub(crate) entered_twice: Vec<Span<String>>,
}

/// States and events: the row applies to each combination.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pairs {
    #[serde(rename = "in")]
    pub states: Names,
    pub event: Names,
}

/// What happens in a row, in a branch of a row, or on entering a state. The order is: take, fill, set, require, send, unschedule,
/// schedule. First come the row's effects, then the branch's, then those of the entered state.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effects {
    #[serde(rename = "in", default)]
    pub(crate) states: Names,
    #[serde(default)]
    pub(crate) event: Names,
    #[serde(rename = "if")]
    pub(crate) condition: Option<Span<String>>,
    #[serde(default)]
    pub(crate) take: Vec<Span<String>>,
    #[serde(default)]
    pub(crate) fill: Vec<Span<String>>,
    #[serde(default)]
    pub(crate) set: BTreeMap<String, Span<String>>,
    pub(crate) require: Option<Span<Require>>,
    #[serde(default)]
    pub(crate) send: Vec<Span<Send>>,
    #[serde(default)]
    pub(crate) schedule: Vec<Span<Schedule>>,
    #[serde(default)]
    pub(crate) unschedule: Vec<Span<String>>,
    pub(crate) to: Option<Span<String>>,
    #[serde(default)]
    pub(crate) branch: Vec<Span<Effects>>,
}

/// Data that must exist and must not be empty.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Require {
    pub(crate) fields: Vec<Span<String>>,
    /// The state to go to if something is missing. If it is left out, missing data is only a warning.
    #[serde(rename = "else")]
    pub(crate) otherwise: Option<Span<String>>,
}

/// A command to send. It is an action, and its name is the action's type.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    pub(crate) command: Span<String>,
    /// A list: the saga sends one command for each element, which the payload sees as `each`.
    pub(crate) each: Option<Span<String>>,
    /// Expressions, by field. If it is left out, the payload is all of the saga's data.
    pub(crate) payload: Option<BTreeMap<String, Span<String>>>,
}

/// An event that the saga schedules for itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Schedule {
    pub(crate) event: Span<String>,
    pub(crate) after: Option<Span<String>>,
    /// An expression that gives a timestamp.
    #[serde(rename = "at")]
    pub(crate) due_at: Option<Span<String>>,
    #[serde(default)]
    pub(crate) data: BTreeMap<String, Span<String>>,
}

/// The event that an S3 notification becomes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct S3 {
    #[serde(rename = "if")]
    pub condition: Option<Span<String>>,
    pub event: Span<String>,
    #[serde(default)]
    pub data: BTreeMap<String, Span<String>>,
}

impl Draft {
    /// A draft with this name, and nothing else.
    #[track_caller]
    pub fn new(name: impl Into<String>) -> Draft {
        Draft {
            name: Span::here(name.into()),
            doc: String::new(),
            correlation: None,
            retention: None,
            events: vec![],
            states: vec![],
            terminal: vec![],
            unreached: vec![],
            data: BTreeMap::new(),
            on: vec![],
            ignore: vec![],
            unexpected: vec![],
            enter: BTreeMap::new(),
            s3: vec![],
            source: None,
            entered_twice: vec![],
        }
    }

    /// Reads a file's text. Defects use `name` as the name of the file.
    pub fn read(name: &str, text: &str) -> Result<Draft, Defects> {
        match toml::from_str::<Draft>(text) {
            Ok(draft) => Ok(Draft { source: Some((name.to_owned(), text.to_owned())), ..draft }),
            Err(error) => Err(Defects::unreadable(name, text, &error)),
        }
    }

    /// One line of description for people.
    pub fn doc(self, doc: impl Into<String>) -> Draft {
        Draft { doc: doc.into(), ..self }
    }

    /// An expression that finds the correlation id in an event.
    #[track_caller]
    pub fn correlation(self, expression: impl Into<String>) -> Draft {
        Draft { correlation: Some(Span::here(expression.into())), ..self }
    }

    /// How long instances stay in their terminal state, as `7d`.
    #[track_caller]
    pub fn retention(self, span: impl Into<String>) -> Draft {
        Draft { retention: Some(Span::here(span.into())), ..self }
    }

    /// The names of the events that the saga knows.
    #[track_caller]
    pub fn events<S: Into<String>>(self, events: impl IntoIterator<Item = S>) -> Draft {
        Draft { events: Names::here(events).0, ..self }
    }

    /// The names of the states. `none`, for a saga without an instance, is not among them.
    #[track_caller]
    pub fn states<S: Into<String>>(self, states: impl IntoIterator<Item = S>) -> Draft {
        Draft { states: Names::here(states).0, ..self }
    }

    /// The states in which an instance is complete. They ignore every event.
    #[track_caller]
    pub fn terminal<S: Into<String>>(self, states: impl IntoIterator<Item = S>) -> Draft {
        Draft { terminal: Names::here(states).0, ..self }
    }

    /// States that no row leads to. An earlier version of the definition may have left instances in them.
    #[track_caller]
    pub fn unreached<S: Into<String>>(self, states: impl IntoIterator<Item = S>) -> Draft {
        Draft { unreached: Names::here(states).0, ..self }
    }

    /// A field of an instance's data.
    #[track_caller]
    pub fn data(mut self, field: impl Into<String>, kind: Kind) -> Draft {
        self.data.insert(field.into(), Span::here(kind.as_str().to_owned()));
        self
    }

    /// What an event does in a state. Several names are separated by commas.
    #[track_caller]
    pub fn on(mut self, states: &str, events: &str, effects: Effects) -> Draft {
        self.on.push(Span::here(Effects { states: listed(states), event: listed(events), ..effects }));
        self
    }

    /// Events that change nothing in these states. Several names are separated by commas; `*` stands for all events.
    #[track_caller]
    pub fn ignore(mut self, states: &str, events: &str) -> Draft {
        self.ignore.push(Span::here(Pairs { states: listed(states), event: listed(events) }));
        self
    }

    /// Events that go to the dead letters in these states. Several names are separated by commas; `*` stands for all events.
    #[track_caller]
    pub fn unexpected(mut self, states: &str, events: &str) -> Draft {
        self.unexpected.push(Span::here(Pairs { states: listed(states), event: listed(events) }));
        self
    }

    /// What happens whenever an instance enters a state.
    #[track_caller]
    pub fn enter(mut self, state: impl Into<String>, effects: Effects) -> Draft {
        let state = Span::here(state.into());
        if self.enter.insert(state.value.clone(), Span::here(effects)).is_some() {
            self.entered_twice.push(state);
        }
        self
    }

    /// Turns an S3 notification into this event, with this data, if the condition holds.
    #[track_caller]
    pub fn s3(mut self, condition: Option<&str>, event: impl Into<String>, data: &[(&str, &str)]) -> Draft {
        let at = Span::here(()).at;
        let condition = condition.map(|text| Span { value: text.to_owned(), at });
        self.s3.push(Span::here(S3 { condition, event: Span::here(event.into()), data: expressions(data) }));
        self
    }
}

#[track_caller]
fn listed(names: &str) -> Names {
    Names::here(names.split(',').map(|name| name.trim().to_owned()))
}

#[track_caller]
fn expressions(fields: &[(&str, &str)]) -> BTreeMap<String, Span<String>> {
    let at = Span::here(()).at;
    let spot = |(field, text): &(&str, &str)| ((*field).to_owned(), Span { value: (*text).to_owned(), at });
    fields.iter().map(spot).collect()
}

impl Effects {
    /// The condition of a branch. A branch without a condition applies if no other does.
    #[track_caller]
    pub fn when(self, condition: impl Into<String>) -> Effects {
        Effects { condition: Some(Span::here(condition.into())), ..self }
    }

    /// Copies these fields of the event's data, if the event has them.
    #[track_caller]
    pub fn take<S: Into<String>>(self, fields: impl IntoIterator<Item = S>) -> Effects {
        Effects { take: Names::here(fields).0, ..self }
    }

    /// Copies these fields like `take`, but only those that are still missing.
    #[track_caller]
    pub fn fill<S: Into<String>>(self, fields: impl IntoIterator<Item = S>) -> Effects {
        Effects { fill: Names::here(fields).0, ..self }
    }

    /// Sets a field. Fields that are set together see the data as it was before.
    #[track_caller]
    pub fn set(mut self, field: impl Into<String>, expression: impl Into<String>) -> Effects {
        self.set.insert(field.into(), Span::here(expression.into()));
        self
    }

    /// These fields must exist and must not be empty. Otherwise the instance goes to that state, and nothing else is done.
    #[track_caller]
    pub fn require<S: Into<String>>(self, fields: impl IntoIterator<Item = S>, otherwise: &str) -> Effects {
        let otherwise = Some(Span::here(otherwise.to_owned()));
        Effects { require: Some(Span::here(Require { fields: Names::here(fields).0, otherwise })), ..self }
    }

    /// Like `require`, but missing data is only recorded.
    #[track_caller]
    pub fn expect<S: Into<String>>(self, fields: impl IntoIterator<Item = S>) -> Effects {
        Effects { require: Some(Span::here(Require { fields: Names::here(fields).0, otherwise: None })), ..self }
    }

    /// Sends a command.
    #[track_caller]
    pub fn send(mut self, command: impl Into<String>, payload: &[(&str, &str)]) -> Effects {
        let payload = Some(expressions(payload));
        self.send.push(Span::here(Send { command: Span::here(command.into()), each: None, payload }));
        self
    }

    /// Sends a command with all of the saga's data.
    #[track_caller]
    pub fn send_data(mut self, command: impl Into<String>) -> Effects {
        self.send.push(Span::here(Send { command: Span::here(command.into()), each: None, payload: None }));
        self
    }

    /// Sends one command for each element of a list, which the payload sees as `each`.
    #[track_caller]
    pub fn send_each(mut self, command: impl Into<String>, list: &str, payload: &[(&str, &str)]) -> Effects {
        let (each, payload) = (Some(Span::here(list.to_owned())), Some(expressions(payload)));
        self.send.push(Span::here(Send { command: Span::here(command.into()), each, payload }));
        self
    }

    /// Schedules an event after a delay.
    #[track_caller]
    pub fn schedule(mut self, event: impl Into<String>, after: Duration) -> Effects {
        let after = Some(Span::here(format!("{}ms", after.as_millis())));
        let schedule = Schedule { event: Span::here(event.into()), after, due_at: None, data: BTreeMap::new() };
        self.schedule.push(Span::here(schedule));
        self
    }

    /// Schedules an event at the time that an expression gives, with data of its own.
    #[track_caller]
    pub fn schedule_at(mut self, event: impl Into<String>, at: &str, data: &[(&str, &str)]) -> Effects {
        let due_at = Some(Span::here(at.to_owned()));
        let schedule = Schedule { event: Span::here(event.into()), after: None, due_at, data: expressions(data) };
        self.schedule.push(Span::here(schedule));
        self
    }

    /// Takes back an event that is scheduled.
    #[track_caller]
    pub fn unschedule(mut self, event: impl Into<String>) -> Effects {
        self.unschedule.push(Span::here(event.into()));
        self
    }

    /// Moves the instance to this state. Without it the instance stays in its state.
    #[track_caller]
    pub fn to(self, state: impl Into<String>) -> Effects {
        Effects { to: Some(Span::here(state.into())), ..self }
    }

    /// Additional effects. The first branch whose condition holds applies.
    #[track_caller]
    pub fn branch(mut self, branch: Effects) -> Effects {
        self.branch.push(Span::here(branch));
        self
    }
}
