//! Turns a draft into a definition. Reports all defects at once, each with its place in the source.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::cover::Way;
use crate::defect::{Defect, Defects, line_of};
use crate::definition::{Cell, Definition, Due, Fields, Kind, NONE, Plan, Required, S3Rule, Scheduled, Sent};
use crate::draft::{Draft, Effects, Pairs};
use crate::event::Event;
use crate::expr::Expr;
use crate::reads::Reads;
use crate::s3::FIELDS as S3_FIELDS;
use crate::span::{At, Names, Span};
use crate::{NAME_BYTES_MAX, RETENTION, RETENTION_DEFAULT};
use oncegate_core::units::{DURATION_HINT, parse_duration, show_duration};

/// Represents all events of the saga.
const ALL: &str = "*";
/// Names that paths of the API already use.
const RESERVED: [&str; 1] = ["dead-letters"];
/// How similar a name has to be to be suggested as the intended one.
const NEAR: f64 = 0.75;

impl Draft {
    /// Checks the whole draft, and reports all defects.
    pub fn check(self) -> Result<Definition, Defects> {
        let mut checker =
            Checker { draft: &self, defects: vec![], handled_at: HashMap::new(), reads: Reads::default() };
        let definition = checker.definition();
        let mut defects = checker.defects;
        match definition {
            Some(definition) if defects.is_empty() => Ok(definition),
            _ => {
                defects.sort_by_key(|defect| defect.line);
                Err(Defects(defects))
            }
        }
    }
}

struct Checker<'a> {
    draft: &'a Draft,
    defects: Vec<Defect>,
    /// Where the draft defines what an event does in a state.
    handled_at: HashMap<(String, String), At>,
    /// What all expressions read so far use.
    reads: Reads,
}

/// The variables that an expression sees.
const OF_EVENT: [&str; 1] = ["event"];
const OF_SAGA: [&str; 3] = ["event", "saga", "now"];
const OF_EACH: [&str; 4] = ["event", "saga", "now", "each"];
const OF_S3: [&str; 2] = ["s3", "now"];

impl Checker<'_> {
    fn say(&mut self, at: At, message: impl Into<String>) {
        self.say_of(at, None, None, message);
    }

    fn say_of(&mut self, at: At, state: Option<&str>, event: Option<&str>, message: impl Into<String>) {
        let (file, line) = match (at, &self.draft.source) {
            (At::Byte(byte), Some((file, text))) => (file.clone(), line_of(text, byte)),
            (At::Byte(_), None) => (String::new(), 0),
            (At::Code(location), _) => (location.file().to_owned(), location.line() as usize),
        };
        let (state, event) = (state.map(str::to_owned), event.map(str::to_owned));
        self.defects.push(Defect { file, line, state, event, message: message.into() });
    }

    fn definition(&mut self) -> Option<Definition> {
        let draft = self.draft;
        self.names();
        let correlation = match &draft.correlation {
            Some(text) => self.expression(text, &OF_EVENT),
            None => {
                let message = "`correlation` is missing: say where the correlation id is, as correlation = \"event.data.orderId\"";
                self.say(draft.name.at, message);
                None
            }
        };
        let retention = draft.retention.as_ref().map_or(Some(RETENTION_DEFAULT), |text| self.retention(text));
        let data: BTreeMap<String, Kind> =
            draft.data.iter().filter_map(|(field, kind)| Some((field.clone(), self.kind(field, kind)?))).collect();
        let rows = draft.on.iter().map(|row| self.row(row)).collect();
        let enter = draft.enter.iter().map(|(state, effects)| (state.clone(), self.hook(state, effects))).collect();
        let s3 = draft.s3.iter().filter_map(|rule| self.s3_rule(rule)).collect();
        let table = self.table();
        let names = |spots: &[Span<String>]| spots.iter().map(|spot| spot.value.clone()).collect::<Vec<_>>();
        let definition = Definition {
            name: draft.name.value.clone(),
            doc: draft.doc.clone(),
            correlation: correlation?,
            reads: std::mem::take(&mut self.reads),
            retention: retention?,
            events: names(&draft.events),
            states: names(&draft.states),
            terminal: names(&draft.terminal).into_iter().collect(),
            unreached: names(&draft.unreached).into_iter().collect(),
            data,
            rows,
            enter,
            s3,
            table,
        };
        // Checks of the whole definition only make sense if its parts are correct.
        if self.defects.is_empty() {
            self.ways(&definition);
        }
        Some(definition)
    }

    /// Checks the names of the saga, its states and its events.
    fn names(&mut self) {
        let draft = self.draft;
        self.name("a saga's name", &draft.name);
        if RESERVED.contains(&draft.name.as_str()) {
            self.say(draft.name.at, format!("a saga cannot be called {:?}", draft.name.value));
        }
        for (what, names) in [("state", &draft.states), ("event", &draft.events)] {
            if names.is_empty() {
                self.say(draft.name.at, format!("there is no {what}: list them, as {what}s = [\"…\"]"));
            }
            let mut seen = BTreeSet::new();
            for name in names {
                self.name(&format!("a name of a {what}"), name);
                if !seen.insert(&name.value) {
                    self.say(name.at, format!("the {what} {} is listed twice", name.value));
                }
            }
        }
        if let Some(none) = draft.states.iter().find(|state| state.value == NONE) {
            self.say(
                none.at,
                format!("`{NONE}` is no state of yours: it is where an instance is that is not there yet"),
            );
        }
        for state in draft.terminal.iter().chain(&draft.unreached) {
            self.state(state);
        }
        for state in &draft.entered_twice {
            self.say_of(state.at, Some(state), None, format!("the hook of {} is given twice", state.value));
        }
        for (state, effects) in &draft.enter {
            self.state(&Span { value: state.clone(), at: effects.at });
        }
    }

    fn name(&mut self, what: &str, name: &Span<String>) {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_good) {
            let message = format!(
                "{what} has letters, digits, `-`, `_`, `.` and `:`, {NAME_BYTES_MAX} at most; {:?} is none",
                name.value
            );
            self.say(name.at, message);
        }
    }

    fn is_state(&self, name: &str) -> bool {
        self.draft.states.iter().any(|state| state.value == name)
    }

    fn is_event(&self, name: &str) -> bool {
        self.draft.events.iter().any(|event| event.value == name)
    }

    /// A state that has to exist.
    fn state(&mut self, name: &Span<String>) -> Option<String> {
        if self.is_state(name) {
            return Some(name.value.clone());
        }
        let hint = nearest(name, &self.draft.states);
        self.say_of(name.at, Some(name), None, format!("there is no state {}{hint}", name.value));
        None
    }

    fn event(&mut self, name: &Span<String>) -> Option<String> {
        if self.is_event(name) {
            return Some(name.value.clone());
        }
        let hint = nearest(name, &self.draft.events);
        self.say_of(name.at, None, Some(name), format!("there is no event {} in `events`{hint}", name.value));
        None
    }

    fn field(&mut self, name: &Span<String>) -> Option<String> {
        if self.draft.data.contains_key(&name.value) {
            return Some(name.value.clone());
        }
        let known: Vec<Span<String>> =
            self.draft.data.keys().map(|name| Span { value: name.clone(), at: At::Byte(0) }).collect();
        self.say(name.at, format!("there is no field {} in `data`{}", name.value, nearest(name, &known)));
        None
    }

    fn kind(&mut self, field: &str, name: &Span<String>) -> Option<Kind> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == name.value);
        if kind.is_none() {
            let names = Kind::ALL.map(Kind::as_str).join(", ");
            self.say(name.at, format!("the field {field} is one of {names}, not {:?}", name.value));
        }
        kind
    }

    fn span(&mut self, text: &Span<String>) -> Option<Duration> {
        let span = parse_duration(text);
        if span.is_none() {
            self.say(text.at, format!("{:?} is no duration: {DURATION_HINT}", text.value));
        }
        span
    }

    /// An instance that is removed too early would let its duplicates start again.
    fn retention(&mut self, text: &Span<String>) -> Option<Duration> {
        let span = self.span(text)?;
        if !RETENTION.contains(&span) {
            let (least, most) = (show_duration(*RETENTION.start()), show_duration(*RETENTION.end()));
            self.say(text.at, format!("retention is {least} to {most}, not {}", text.value));
        }
        Some(span)
    }

    /// An expression that uses only names that exist.
    fn expression(&mut self, text: &Span<String>, variables: &[&str]) -> Option<Expr> {
        let expression = match Expr::read(text) {
            Ok(expression) => expression,
            Err(why) => {
                self.say(text.at, why);
                return None;
            }
        };
        let data = &self.draft.data;
        let knows = |name: &str, field: &str| match name {
            "saga" => data.contains_key(field),
            "event" => Event::FIELDS.contains(&field),
            "s3" => S3_FIELDS.contains(&field),
            _ => true,
        };
        for unknown in expression.unknown(variables, knows) {
            self.say(text.at, format!("`{}`: {unknown}", text.value));
        }
        self.reads.add(expression.reads());
        Some(expression)
    }

    fn fields(&mut self, fields: &BTreeMap<String, Span<String>>, variables: &[&str]) -> Fields {
        let read = |(field, text): (&String, &Span<String>)| Some((field.clone(), self.expression(text, variables)?));
        fields.iter().filter_map(read).collect()
    }

    fn row(&mut self, row: &Span<Effects>) -> Plan {
        if row.states.0.is_empty() || row.event.0.is_empty() {
            self.say(row.at, "a row needs `in` and `event`: in which states, and which events");
        }
        if let Some(condition) = &row.condition {
            self.say(condition.at, "a condition belongs into a branch: branch = [{ if = \"…\", to = \"…\" }]");
        }
        let is_idle = row.take.is_empty() && row.fill.is_empty() && row.set.is_empty() && row.require.is_none();
        if is_idle
            && row.send.is_empty()
            && row.schedule.is_empty()
            && row.unschedule.is_empty()
            && row.to.is_none()
            && row.branch.is_empty()
        {
            self.say(row.at, "a row that does nothing: list its events under `ignore`, or say what happens");
        }
        let starts = row.states.0.iter().any(|state| state.value == NONE);
        let leads_on = |plan: &Effects| plan.to.is_some();
        let last_decides = row.branch.last().is_some_and(|last| last.condition.is_none());
        if starts && row.to.is_none() && !(last_decides && row.branch.iter().all(|branch| leads_on(branch))) {
            let event = row.event.0.first().map(|event| event.value.as_str());
            self.say_of(
                row.at,
                Some(NONE),
                event,
                format!("a row in `{NONE}` makes an instance: say which state it begins in, as to = \"…\""),
            );
        }
        let branches = row.branch.iter().enumerate().map(|(i, branch)| {
            if branch.condition.is_none() && i + 1 < row.branch.len() {
                self.say(row.branch[i + 1].at, "this branch is never reached: the one before it has no condition");
            }
            self.within(branch, "a branch");
            self.plan(branch, vec![])
        });
        let branches = branches.collect();
        self.plan(row, branches)
    }

    /// Reports parts that are not allowed there.
    fn within(&mut self, effects: &Span<Effects>, what: &str) {
        if !effects.states.0.is_empty() || !effects.event.0.is_empty() {
            self.say(effects.at, format!("`in` and `event` belong to the row, not to {what}"));
        }
        if let Some(require) = &effects.require {
            self.say(require.at, format!("`require` belongs to the row, not to {what}"));
        }
        if let Some(branch) = effects.branch.first() {
            self.say(branch.at, format!("a branch belongs to the row, not to {what}"));
        }
    }

    fn hook(&mut self, state: &str, effects: &Span<Effects>) -> Plan {
        self.within(effects, "the hook of a state");
        for wrong in effects.condition.iter().chain(&effects.to) {
            self.say_of(
                wrong.at,
                Some(state),
                None,
                format!("entering {state} happens whatever the condition, and leads nowhere else"),
            );
        }
        self.plan(effects, vec![])
    }

    fn plan(&mut self, effects: &Effects, branches: Vec<Plan>) -> Plan {
        let names = |checker: &mut Self, names: &[Span<String>]| {
            names.iter().filter_map(|name| checker.field(name)).collect::<Vec<_>>()
        };
        for (field, text) in &effects.set {
            self.field(&Span { value: field.clone(), at: text.at });
        }
        let schedule = effects.schedule.iter().filter_map(|schedule| {
            let event = self.event(&schedule.event);
            let due = match (&schedule.after, &schedule.due_at) {
                (Some(after), None) => self.span(after).map(Due::After),
                (None, Some(at)) => self.expression(at, &OF_SAGA).map(|at| Due::At(Box::new(at))),
                _ => {
                    let message =
                        format!("say when {} comes: after = \"60m\", or at = an expression", schedule.event.value);
                    self.say_of(schedule.event.at, None, Some(&schedule.event), message);
                    None
                }
            };
            let data = self.fields(&schedule.data, &OF_SAGA);
            Some(Scheduled { event: event?, due: due?, data })
        });
        let schedule = schedule.collect();
        let send = effects.send.iter().map(|send| {
            self.name("a command's name", &send.command);
            let each = send.each.as_ref().and_then(|each| self.expression(each, &OF_SAGA));
            let variables: &[&str] = if send.each.is_some() { &OF_EACH } else { &OF_SAGA };
            let payload = send.payload.as_ref().map(|payload| self.fields(payload, variables));
            Sent { command: send.command.value.clone(), each, payload }
        });
        let send = send.collect();
        let require = effects.require.as_ref().map(|require| Required {
            fields: names(self, &require.fields),
            otherwise: require.otherwise.as_ref().and_then(|state| self.state(state)),
        });
        for name in &effects.unschedule {
            let schedules =
                |effects: &Effects| effects.schedule.iter().any(|schedule| schedule.event.value == name.value);
            let of_rows = self
                .draft
                .on
                .iter()
                .flat_map(|row| std::iter::once(&row.value).chain(row.branch.iter().map(|branch| &branch.value)));
            let is_scheduled = of_rows.chain(self.draft.enter.values().map(|effects| &effects.value)).any(schedules);
            if self.event(name).is_some() && !is_scheduled {
                self.say_of(name.at, None, Some(name), format!("nothing schedules {}", name.value));
            }
        }
        Plan {
            condition: effects.condition.as_ref().and_then(|condition| self.expression(condition, &OF_SAGA)),
            take: names(self, &effects.take),
            fill: names(self, &effects.fill),
            set: self.fields(&effects.set, &OF_SAGA),
            require,
            send,
            schedule,
            unschedule: effects.unschedule.iter().map(|name| name.value.clone()).collect(),
            to: effects.to.as_ref().and_then(|state| self.state(state)),
            branches,
        }
    }

    fn s3_rule(&mut self, rule: &Span<crate::draft::S3>) -> Option<S3Rule> {
        let condition = rule.condition.as_ref().map(|condition| self.expression(condition, &OF_S3));
        let event = self.event(&rule.event);
        let data = self.fields(&rule.data, &OF_S3);
        Some(S3Rule { condition: condition.flatten(), event: event?, data })
    }

    /// Builds the table: every pair of state and event, once.
    fn table(&mut self) -> HashMap<String, HashMap<String, Cell>> {
        let draft = self.draft;
        let mut table = HashMap::new();
        for (number, row) in draft.on.iter().enumerate() {
            self.enter_pairs(&mut table, &row.states, &row.event, Cell::Handled(number));
        }
        for (pairs, cell) in [(&draft.ignore, Cell::Ignored), (&draft.unexpected, Cell::Unexpected)] {
            for Span { value: Pairs { states, event }, .. } in pairs {
                self.enter_pairs(&mut table, states, event, cell);
            }
        }
        let none = Span { value: NONE.to_owned(), at: draft.name.at };
        for state in std::iter::once(&none).chain(&draft.states) {
            for event in &draft.events {
                if table.get(&state.value).is_none_or(|row| !row.contains_key(&event.value)) {
                    let message = format!(
                        "event {} in state {} is neither handled, ignored nor unexpected: say which",
                        event.value, state.value
                    );
                    self.say_of(state.at, Some(state), Some(event), message);
                }
            }
        }
        table
    }

    fn enter_pairs(
        &mut self,
        table: &mut HashMap<String, HashMap<String, Cell>>,
        states: &Names,
        events: &Names,
        cell: Cell,
    ) {
        for state in &states.0 {
            if state.value != NONE && self.state(state).is_none() {
                continue;
            }
            for event in &events.0 {
                let is_all = event.value == ALL && !matches!(cell, Cell::Handled(_));
                if !is_all && self.event(event).is_none() {
                    continue;
                }
                let all = self.draft.events.iter().filter(|_| is_all).map(|event| event.value.clone());
                let named = std::iter::once(event.value.clone()).filter(|_| !is_all);
                for name in all.chain(named).collect::<Vec<_>>() {
                    self.enter_pair(table, state, &name, event.at, cell);
                }
            }
        }
    }

    fn enter_pair(
        &mut self,
        table: &mut HashMap<String, HashMap<String, Cell>>,
        state: &str,
        event: &str,
        at: At,
        cell: Cell,
    ) {
        let is_terminal = self.draft.terminal.iter().any(|terminal| terminal.value == state);
        if is_terminal && cell != Cell::Ignored {
            let message = format!("{state} is terminal: there it ignores {event}, which can still arrive");
            self.say_of(at, Some(state), Some(event), message);
        }
        let before = self.handled_at.insert((state.to_owned(), event.to_owned()), at);
        if let Some(before) = before {
            let line = match (before, &self.draft.source) {
                (At::Byte(byte), Some((_, text))) => line_of(text, byte),
                (At::Byte(_), None) => 0,
                (At::Code(location), _) => location.line() as usize,
            };
            let message = format!("event {event} in state {state} is spoken of twice; the first time in line {line}");
            self.say_of(at, Some(state), Some(event), message);
        }
        table.entry(state.to_owned()).or_default().entry(event.to_owned()).or_insert(cell);
    }

    /// Checks which states can be reached, and which scheduled events can arrive there.
    fn ways(&mut self, definition: &Definition) {
        let draft = self.draft;
        for event in &draft.events {
            let is_handled = |row: &HashMap<String, Cell>| matches!(row.get(&event.value), Some(Cell::Handled(_)));
            if !definition.table.values().any(is_handled) {
                self.say_of(event.at, None, Some(event), format!("the event {} is handled in no state", event.value));
            }
        }
        let reachable = definition.reachable();
        for state in draft.states.iter().filter(|state| !reachable.contains(state.as_str())) {
            let message = format!("the state {} cannot be reached: no row leads there", state.value);
            self.say_of(state.at, Some(state), None, message);
        }
        for state in &draft.unreached {
            let leads_there =
                |row: &Plan, from: &str| definition.ways(row, from).iter().any(|way| way.to == state.value);
            let rows = definition.table.iter().filter(|(from, _)| **from != state.value);
            let mut cells = rows.flat_map(|(from, row)| row.values().map(move |cell| (from, cell)));
            let is_reached = cells
                .any(|(from, cell)| matches!(cell, Cell::Handled(row) if leads_there(&definition.rows[*row], from)));
            if is_reached {
                self.say_of(
                    state.at,
                    Some(state),
                    None,
                    format!("{} is reached: take it out of `unreached`", state.value),
                );
            }
        }
        for (plan, row) in definition.rows.iter().zip(&draft.on) {
            let ends = |way: &Way<'_>| definition.is_terminal(way.to);
            let all_end = row.states.0.iter().all(|from| definition.ways(plan, from).iter().all(ends));
            if let Some(schedule) = row.schedule.first().filter(|_| all_end) {
                self.never_comes(&schedule.event);
            }
        }
        for (state, effects) in &draft.enter {
            if let Some(schedule) = effects.schedule.first().filter(|_| definition.is_terminal(state)) {
                self.never_comes(&schedule.event);
            }
        }
        for event in &draft.events {
            for state in definition.arrivals(&event.value) {
                if definition.cell(Some(state), &event.value) == Some(Cell::Unexpected) {
                    let at = self.handled_at.get(&(state.to_owned(), event.value.clone())).copied().unwrap_or(event.at);
                    let message = format!(
                        "{} is scheduled, and can arrive in state {state}: handle it there, or ignore it",
                        event.value
                    );
                    self.say_of(at, Some(state), Some(event), message);
                }
            }
        }
    }

    fn never_comes(&mut self, event: &Span<String>) {
        let message =
            format!("{} is scheduled on the way into a terminal state: there it is not awaited any more", event.value);
        self.say_of(event.at, None, Some(event), message);
    }
}

fn nearest(name: &str, known: &[Span<String>]) -> String {
    let near = known.iter().map(|known| (strsim::jaro_winkler(name, known), &known.value));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((nearness, known)) if nearness >= NEAR => format!("; did you mean {known}?"),
        _ => String::new(),
    }
}
