//! The cost limit of expressions.
//!
//! The `cel` crate has no hook for cost, so each expression is rewritten when it is loaded ([`metered`]). The rewriting wraps each
//! operation whose time depends on the size of its operands into a call of a metering function. These functions charge the meter
//! *before* the operation runs, and fail when the limit is passed. Their names begin with `@`, which no expression can write.
//!
//! A step is the work for one small value: a number, an element of a list, 64 bytes of a text.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr as Node, IdedEntryExpr, ListExpr, LiteralValue, MapEntryExpr, MapExpr,
    SelectExpr, StructExpr, StructFieldExpr, operators,
};
use cel::common::types::{
    self, CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional, CelString,
};
use cel::common::value::{CowVal, Val};
use cel::{Env, ExecutionError, IdedExpr};
use serde_json::Value;

use crate::patterns::{Patterns, match_of};

/// The default limit for all expressions of one event: about 50 ms.
pub const STEPS_DEFAULT: u64 = 1_000_000;

/// How many bytes of a text are one step.
const TEXT_BYTES: usize = 64;
/// How many values of a result are one step: they are only copied.
const RESULTS: u64 = 4;
/// In the worst case, `split` and similar functions make a value of each byte.
const PIECES: i64 = TEXT_BYTES as i64;
/// The factor of a comparison sort: the logarithm of the longest list.
const SORTING: i64 = 24;

/// Calls whose cost is the product of their arguments' sizes.
const PRODUCTS: [&str; 5] = ["replace", "join", "indexOf", "lastIndexOf", "format"];
/// Calls whose cost is the sum of their arguments' sizes, times this factor.
const SUMS: [(&str, i64); 40] = [
    ("size", 1),
    ("contains", 1),
    ("startsWith", 1),
    ("endsWith", 1),
    ("charAt", 1),
    ("lowerAscii", 1),
    ("upperAscii", 1),
    ("trim", 1),
    ("split", PIECES),
    ("substring", 1),
    ("strings.quote", 1),
    ("quote", 1),
    ("reverse", 1),
    ("slice", 1),
    ("flatten", 2),
    ("sort", SORTING),
    ("@sortByAssociatedKeys", SORTING),
    ("unique", 2),
    ("string", 1),
    ("bytes", 1),
    ("int", 1),
    ("uint", 1),
    ("double", 1),
    ("bool", 1),
    ("type", 1),
    ("dyn", 1),
    ("duration", 1),
    ("timestamp", 1),
    ("of", 1),
    ("none", 1),
    ("ofNonZeroValue", 1),
    ("value", 1),
    ("hasValue", 1),
    ("or", 1),
    ("orValue", 1),
    ("getFullYear", 1),
    ("getMonth", 1),
    ("getDate", 1),
    ("getHours", 1),
    ("getMinutes", 1),
];
/// Namespaces: prefixes of function names that are no values.
const NAMESPACES: [&str; 3] = ["optional", "lists", "strings"];

const WEIGH: &str = "@weigh";
const KEY: &str = "@key";
const EACH: &str = "@each";
const ALIVE: &str = "@alive";
const NOTE: &str = "@note";
const TOLL: &str = "@toll";
const SQUARE: &str = "@square";
const RANGE: &str = "@range";
const MATCHES: &str = "@matches";

/// The steps that the expressions of one event have taken, and their limit.
#[derive(Debug)]
pub struct Steps {
    taken: Cell<u64>,
    max: u64,
}

impl Steps {
    /// A meter that has taken no steps, with a limit of `max` steps.
    pub fn up_to(max: u64) -> Steps {
        Steps { taken: Cell::new(0), max }
    }

    /// The steps taken so far. If this is over the limit, the last charge is included but its work was not done.
    pub fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Whether the steps taken are over the limit.
    pub fn are_exceeded(&self) -> bool {
        self.taken.get() > self.max
    }

    pub(crate) fn left(&self) -> u64 {
        self.max.saturating_sub(self.taken.get())
    }

    pub(crate) fn charge(&self, steps: u64) -> Result<(), String> {
        self.taken.set(self.taken.get().saturating_add(steps));
        if self.are_exceeded() { Err(self.complaint()) } else { Ok(()) }
    }

    pub(crate) fn complaint(&self) -> String {
        format!(
            "takes at least {} steps with what the event took before; the expressions of an event may take {} (`limits.saga_steps`)",
            self.taken.get(),
            self.max
        )
    }

    /// Runs an evaluation on this thread with these steps as its meter.
    pub(crate) fn metering<T>(&self, patterns: &Arc<Patterns>, evaluate: impl FnOnce() -> T) -> T {
        METER.set(Meter { taken: self.taken.get(), max: self.max });
        NOTED.with_borrow_mut(HashMap::clear);
        PATTERNS.set(patterns.clone());
        let result = evaluate();
        self.taken.set(METER.get().taken);
        result
    }
}

impl Default for Steps {
    fn default() -> Steps {
        Steps::up_to(STEPS_DEFAULT)
    }
}

/// The meter of this thread. Thread-local, because the functions of an environment carry no state, and an evaluation stays on its
/// thread.
#[derive(Clone, Copy, Default)]
struct Meter {
    taken: u64,
    max: u64,
}

thread_local! {
    static METER: Cell<Meter> = const { Cell::new(Meter { taken: 0, max: 0 }) };
    /// The weights of arguments that wait for the last argument of their call: by the call's number, and their position in it.
    static NOTED: RefCell<HashMap<(u64, u64), u64>> = RefCell::default();
    static PATTERNS: RefCell<Arc<Patterns>> = RefCell::default();
}

fn charge(steps: u64) -> Result<(), ExecutionError> {
    let Meter { taken, max } = METER.get();
    let taken = taken.saturating_add(steps);
    METER.set(Meter { taken, max });
    if taken > max { Err(exhausted()) } else { Ok(()) }
}

fn exhausted() -> ExecutionError {
    ExecutionError::function_error("steps", "too many")
}

/// No need to count further than this.
fn enough() -> u64 {
    let Meter { taken, max } = METER.get();
    max.saturating_sub(taken).saturating_add(1)
}

/// How many steps it takes to visit all of a value. Counting stops at `enough`.
pub(crate) fn weight(value: &(dyn Val + '_), enough: u64) -> u64 {
    fn add(value: &(dyn Val + '_), sum: &mut u64, enough: u64) {
        *sum += 1;
        if *sum >= enough {
            return;
        }
        if let Some(text) = value.downcast_ref::<CelString>() {
            *sum += of_bytes(text.inner().len());
        } else if let Some(list) = value.downcast_ref::<CelList>() {
            list.inner().iter().take_while(|item| more(item.as_ref(), sum, enough)).for_each(drop);
        } else if let Some(map) = value.downcast_ref::<CelMap>() {
            for (key, value) in map.inner() {
                if let CelMapKey::String(key) = key {
                    *sum += of_bytes(key.inner().len());
                }
                if !more(value.as_ref(), sum, enough) {
                    return;
                }
            }
        } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
            *sum += of_bytes(bytes.inner().len());
        } else if let Some(inner) = value.downcast_ref::<CelOptional>().and_then(CelOptional::inner) {
            add(inner, sum, enough);
        }
    }
    fn more(value: &(dyn Val + '_), sum: &mut u64, enough: u64) -> bool {
        add(value, sum, enough);
        *sum < enough
    }
    let mut sum = 0;
    add(value, &mut sum, enough);
    sum
}

/// The steps to convert a result to JSON.
pub(crate) fn result_weight(value: &(dyn Val + '_), left: u64) -> u64 {
    weight(value, left.saturating_add(1).saturating_mul(RESULTS)).div_ceil(RESULTS)
}

/// The steps to convert JSON to values.
pub(crate) fn json_weight(value: &Value, enough: u64) -> u64 {
    fn add(value: &Value, sum: &mut u64, enough: u64) -> bool {
        *sum += 1;
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => *sum += of_bytes(text.len()),
            Value::Array(list) => return *sum < enough && list.iter().all(|item| add(item, sum, enough)),
            Value::Object(fields) => {
                return *sum < enough
                    && fields.iter().all(|(name, value)| {
                        *sum += of_bytes(name.len());
                        add(value, sum, enough)
                    });
            }
        }
        *sum < enough
    }
    let mut sum = 0;
    add(value, &mut sum, enough);
    sum
}

fn of_bytes(bytes: usize) -> u64 {
    (bytes / TEXT_BYTES) as u64
}

// The metering functions, which wrap expensive operations.

type Args<'b, 'v> = Vec<CowVal<'b, 'v>>;
type Given<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

/// Adds the metering functions to an environment.
pub(crate) fn install(env: &mut Env) -> Result<(), cel::DeclarationError> {
    let any = || types::DYN_TYPE;
    env.add_overload(WEIGH, WEIGH, vec![any(), types::INT_TYPE], weigh)?;
    env.add_overload(EACH, EACH, vec![any(), types::INT_TYPE], each)?;
    env.add_overload(ALIVE, ALIVE, vec![any()], alive)?;
    env.add_overload(KEY, KEY, vec![any()], key)?;
    env.add_overload(NOTE, NOTE, vec![any(), types::INT_TYPE, types::INT_TYPE], note)?;
    env.add_overload(TOLL, TOLL, vec![any(), types::INT_TYPE, types::INT_TYPE], toll)?;
    env.add_overload(SQUARE, SQUARE, vec![any()], square)?;
    env.add_overload(RANGE, RANGE, vec![any()], range)?;
    env.add_overload(MATCHES, MATCHES, vec![any(), types::STRING_TYPE], matches)
}

fn first<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    args.into_iter().next().ok_or_else(|| ExecutionError::invalid_argument_count(1, 0))
}

fn whole(args: &Args<'_, '_>, i: usize) -> u64 {
    let number = args.get(i).and_then(|arg| arg.downcast_ref::<CelInt>()).map_or(0, |number| *number.inner());
    u64::try_from(number).unwrap_or(0)
}

/// Charges for a value, times a factor.
fn weigh<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    let times = whole(&args, 1);
    charge(weight(args[0].as_ref(), enough()).saturating_mul(times))?;
    first(args)
}

/// Charges for a lookup key. If a list is looked up with a fraction, it copies itself into the error.
fn key<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    charge(weight(args[0].as_ref(), enough()))?;
    match args[0].downcast_ref::<CelDouble>() {
        Some(number) if number.inner().fract() != 0.0 => Ok(CowVal::owned(CelNull)),
        _ => first(args),
    }
}

/// Charges for a loop: each element is copied, and the loop's body has this many parts.
fn each<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    let (range, parts) = (args[0].as_ref(), whole(&args, 1));
    let elements = range.as_sizer().map_or(0, |sizer| u64::try_from(*sizer.size().inner()).unwrap_or(0));
    charge(elements.saturating_mul(parts).saturating_add(weight(range, enough())))?;
    first(args)
}

/// Ends a loop whose body may fail without ending it: `all` and `exists` continue after an error.
fn alive<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    charge(0)?;
    first(args)
}

/// Notes an argument whose weight is multiplied with the weight of the next.
fn note<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    let weight = weight(args[0].as_ref(), enough());
    charge(weight)?;
    NOTED.with_borrow_mut(|noted| noted.insert((whole(&args, 1), whole(&args, 2)), weight));
    first(args)
}

/// Runs on the last argument, and charges for the product of all.
fn toll<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    let (call, others) = (whole(&args, 1), whole(&args, 2));
    let own = weight(args[0].as_ref(), enough());
    let product = NOTED.with_borrow(|noted| {
        (0..others)
            .filter_map(|place| noted.get(&(call, place)))
            .fold(own, |product, other| product.saturating_mul(*other))
    });
    // A text of one step may have 64 positions.
    charge(product.saturating_mul(TEXT_BYTES as u64))?;
    first(args)
}

fn square<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    let weight = weight(args[0].as_ref(), enough());
    charge(weight.saturating_mul(weight))?;
    first(args)
}

/// Charges for a number of created values.
fn range<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    charge(whole(&args, 0))?;
    first(args)
}

fn matches<'b, 'v>(args: Args<'b, 'v>) -> Given<'b, 'v> {
    let (Some(text), Some(pattern)) = (args[0].downcast_ref::<CelString>(), args[1].downcast_ref::<CelString>()) else {
        let types = args.iter().map(|arg| arg.get_type().name().to_owned()).collect();
        return Err(ExecutionError::no_such_member_overload("matches", types));
    };
    PATTERNS.with_borrow(|patterns| {
        let pattern = patterns.get(pattern.inner()).ok_or_else(|| ExecutionError::no_such_key(pattern.inner()))?;
        charge(pattern.steps(text.inner()))?;
        Ok(CowVal::owned(CelBool::from(pattern.matches(text.inner()))))
    })
}

// Rewriting expressions for the meter.

/// How many parts an expression has.
pub(crate) fn parts_of(node: &IdedExpr) -> u64 {
    crate::parts::parts(node).into_iter().map(parts_of).sum::<u64>() + 1
}

/// The same expression, with a meter.
pub(crate) fn metered(node: &IdedExpr) -> IdedExpr {
    let expr = match &node.expr {
        Node::Unspecified | Node::Literal(_) | Node::Ident(_) => node.expr.clone(),
        Node::Select(SelectExpr { operand, field, test }) => {
            Node::Select(SelectExpr { operand: Box::new(metered(operand)), field: field.clone(), test: *test })
        }
        Node::Call(call) => return metered_call(node.id, call),
        Node::List(list) => Node::List(metered_list(list)),
        Node::Map(map) => Node::Map(MapExpr { entries: metered_entries(&map.entries) }),
        Node::Struct(made) => {
            Node::Struct(StructExpr { type_name: made.type_name.clone(), entries: metered_entries(&made.entries) })
        }
        Node::Comprehension(loops) => Node::Comprehension(Box::new(metered_loop(loops))),
    };
    IdedExpr { id: node.id, expr }
}

fn metered_list(list: &ListExpr) -> ListExpr {
    // An element that is put into a list is copied.
    let elements = list.elements.iter().map(|element| weighed(element, 1)).collect();
    ListExpr::new_with_optionals(elements, list.optional_indices.clone())
}

fn metered_entries(entries: &[IdedEntryExpr]) -> Vec<IdedEntryExpr> {
    let metered_entry = |entry: &IdedEntryExpr| {
        let expr = match &entry.expr {
            EntryExpr::StructField(field) => EntryExpr::StructField(StructFieldExpr {
                field: field.field.clone(),
                value: weighed(&field.value, 1),
                optional: field.optional,
            }),
            EntryExpr::MapEntry(entry) => EntryExpr::MapEntry(MapEntryExpr {
                key: weighed(&entry.key, 1),
                value: weighed(&entry.value, 1),
                optional: entry.optional,
            }),
        };
        IdedEntryExpr { id: entry.id, expr }
    };
    entries.iter().map(metered_entry).collect()
}

fn metered_loop(loops: &ComprehensionExpr) -> ComprehensionExpr {
    let parts = parts_of(&loops.loop_step) + parts_of(&loops.loop_cond);
    let loop_cond = match &loops.loop_cond.expr {
        Node::Literal(_) => loops.loop_cond.clone(),
        _ => call(ALIVE, vec![metered(&loops.loop_cond)]),
    };
    ComprehensionExpr {
        iter_range: call(EACH, vec![metered(&loops.iter_range), number(i64::try_from(parts).unwrap_or(i64::MAX))]),
        iter_var: loops.iter_var.clone(),
        iter_var2: loops.iter_var2.clone(),
        accu_var: loops.accu_var.clone(),
        // The interpreter recognises the loops of `map` and `filter` by their initial empty list.
        accu_init: weighed(&loops.accu_init, 1),
        loop_cond,
        loop_step: metered(&loops.loop_step),
        result: if is_own(&loops.result) { loops.result.clone() } else { weighed(&loops.result, 1) },
    }
}

fn metered_call(id: u64, made: &CallExpr) -> IdedExpr {
    let rebuilt = |target: Option<Box<IdedExpr>>, args: Vec<IdedExpr>| IdedExpr {
        id,
        expr: Node::Call(CallExpr { func_name: made.func_name.clone(), target, args }),
    };
    let all = |times: i64| {
        let target = made
            .target
            .as_deref()
            .map(|target| if is_namespace(target) { target.clone() } else { weighed(target, times) });
        rebuilt(target.map(Box::new), made.args.iter().map(|arg| weighed(arg, times)).collect())
    };
    let plain = || rebuilt(made.target.as_deref().map(metered).map(Box::new), made.args.iter().map(metered).collect());
    let indexed = || {
        let key = |key: &IdedExpr| if is_literal(key) { key.clone() } else { call(KEY, vec![metered(key)]) };
        rebuilt(None, vec![metered(&made.args[0]), key(&made.args[1])])
    };
    if let Some((text, pattern)) = match_of(made) {
        return call(MATCHES, vec![metered(text), pattern.clone()]);
    }
    match (made.func_name.trim_start_matches('.'), &made.args[..]) {
        (operators::ADD, [sum, more]) if is_own(sum) && matches!(more.expr, Node::List(_)) => {
            // The step of `map` and `filter`, which the interpreter recognises by its form.
            rebuilt(None, vec![sum.clone(), metered(more)])
        }
        // A text is compared with a literal of the definition.
        (operators::EQUALS | operators::NOT_EQUALS, [a, b]) if is_literal(a) || is_literal(b) => plain(),
        // An operator that fails copies its operands into the error.
        (
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO
            | operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::IN,
            [_, _],
        ) => all(1),
        (operators::INDEX, [_, _]) => indexed(),
        // An optional value is copied.
        (operators::OPT_INDEX, [_, _]) => call(WEIGH, vec![indexed(), number(1)]),
        (operators::OPT_SELECT, _) => call(WEIGH, vec![plain(), number(1)]),
        ("range", [count]) => rebuilt(made.target.clone(), vec![call(RANGE, vec![metered(count)])]),
        ("distinct", []) => {
            let target = made.target.as_deref().map(|target| call(SQUARE, vec![metered(target)]));
            rebuilt(target.map(Box::new), vec![])
        }
        (name, _) if is_operator(name) => plain(),
        (name, _) => match SUMS.iter().find(|(sum, _)| *sum == name) {
            Some((_, times)) => all(*times),
            None if PRODUCTS.contains(&name) || !made.args.is_empty() => multiplied(id, made),
            None => all(1),
        },
    }
}

/// The arguments first and the target last, in the order in which the interpreter evaluates them.
fn multiplied(id: u64, made: &CallExpr) -> IdedExpr {
    let target = made.target.as_deref().filter(|target| !is_namespace(target));
    let notes = made.args.len() - usize::from(target.is_none() && !made.args.is_empty());
    let numbers = |place: usize| [id, place as u64].map(|whole| number(i64::try_from(whole).unwrap_or(i64::MAX)));
    let with = |name: &str, node: &IdedExpr, place: usize| {
        call(name, [metered(node)].into_iter().chain(numbers(place)).collect())
    };
    let argument = |(i, arg): (usize, &IdedExpr)| {
        if i < notes { with(NOTE, arg, i) } else { with(TOLL, arg, notes) }
    };
    let args = made.args.iter().enumerate().map(argument).collect();
    let target = match target {
        Some(target) => Some(Box::new(with(TOLL, target, notes))),
        None => made.target.clone(),
    };
    IdedExpr { id, expr: Node::Call(CallExpr { func_name: made.func_name.clone(), target, args }) }
}

fn weighed(node: &IdedExpr, times: i64) -> IdedExpr {
    let is_empty = matches!(&node.expr, Node::List(list) if list.elements.is_empty());
    if is_empty || is_literal(node) { node.clone() } else { call(WEIGH, vec![metered(node), number(times)]) }
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id: 0, expr: Node::Call(CallExpr { func_name: name.to_owned(), target: None, args }) }
}

fn number(number: i64) -> IdedExpr {
    IdedExpr { id: 0, expr: Node::Literal(LiteralValue::Int(number.into())) }
}

fn is_literal(node: &IdedExpr) -> bool {
    matches!(node.expr, Node::Literal(_))
}

/// An internal variable of a loop.
fn is_own(node: &IdedExpr) -> bool {
    matches!(&node.expr, Node::Ident(name) if name.starts_with('@'))
}

fn is_namespace(node: &IdedExpr) -> bool {
    matches!(&node.expr, Node::Ident(name) if NAMESPACES.contains(&name.as_str()))
}

fn is_operator(name: &str) -> bool {
    !name.starts_with(char::is_alphabetic)
}
