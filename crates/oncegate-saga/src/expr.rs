//! Expressions: CEL over `event`, `saga` and `now`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr as Node, IdedEntryExpr};
use cel::extractors::This;
use cel::objects::{Key, Map as CelMap, OptionalValue};
use cel::{Context, Env, ExecutionError, IdedExpr, Program, Value as Cel, extensions};
use oncegate_core::Time;
use serde_json::{Map, Number, Value};

use crate::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX};

/// Of what an expression says when it goes wrong: it repeats values, and those may be large.
const ERROR_CHARS_MAX: usize = 300;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for extension in [extensions::strings, extensions::lists] {
        env.add_extension(extension).expect("extensions do not clash");
    }
    Arc::new(env)
});

/// With what CEL has, and `unique`: as `distinct`, which compares each with each, for lists of any length.
fn context() -> Context<'static, 'static> {
    let mut context = Context::with_env(ENV.clone());
    context.add_function("unique", unique).expect("nothing else is called so");
    context
}

fn unique(This(list): This<Arc<Vec<Cel>>>) -> Result<Cel, ExecutionError> {
    let mut seen = HashSet::new();
    let mut first = vec![];
    for item in list.iter() {
        let key =
            to_json(item).map_err(|what| ExecutionError::function_error("unique", format!("{what} in the list")))?;
        if seen.insert(key.to_string()) {
            first.push(item.clone());
        }
    }
    Ok(Cel::List(Arc::new(first)))
}

/// An expression that has been read.
#[derive(Debug)]
pub struct Expr {
    text: String,
    program: Program,
}

impl Expr {
    pub fn read(text: &str) -> Result<Expr, String> {
        let wrong = |errors: cel::ParseErrors| {
            let first = errors.errors.first().map(|error| (error.msg.as_str(), error.pos.1));
            let (what, column) = first.unwrap_or(("it cannot be read", 1));
            let what = what.trim_start_matches("Syntax error: ");
            format!("`{text}` is no expression: {what}, at its character {column}")
        };
        if text.len() > EXPRESSION_BYTES_MAX {
            let bytes = text.len();
            return Err(format!("an expression has at most {EXPRESSION_BYTES_MAX} bytes; this one has {bytes}"));
        }
        let program = ENV.compile(text).map_err(wrong)?;
        match depth(program.expression()) > EXPRESSION_DEPTH_MAX {
            true => Err(format!("`{text}` is nested over {EXPRESSION_DEPTH_MAX} deep: split it up, by way of `data`")),
            false => Ok(Expr { text: text.to_owned(), program }),
        }
    }

    /// What it speaks of that is not there, in words: variables beside these, fields of the event, of the saga's data, and functions.
    pub fn unknown(&self, variables: &[&str], knows: impl Fn(&str, &str) -> bool) -> Vec<String> {
        let mut walk =
            Walk { scope: variables.iter().map(|name| (*name).to_owned()).collect(), knows, unknown: vec![] };
        walk.node(self.program.expression());
        walk.unknown
    }

    pub fn eval(&self, scope: &Scope<'_>) -> Result<Value, String> {
        let wrong = |error: String| {
            let error: String = error.chars().take(ERROR_CHARS_MAX).collect();
            format!("`{}`: {error}", self.text)
        };
        let value = self.program.execute(&scope.0).map_err(|error| wrong(told(&error)))?;
        to_json(&value).map_err(|what| wrong(format!("gives {what}, which is no JSON")))
    }

    pub fn eval_bool(&self, scope: &Scope<'_>) -> Result<bool, String> {
        match self.eval(scope)? {
            Value::Bool(is) => Ok(is),
            other => Err(format!("`{}` gives {}, not true or false", self.text, kind_of(&other))),
        }
    }
}

/// Of an expression's tree. Without recursion: it may be deeper than the stack.
fn depth(root: &IdedExpr) -> usize {
    let (mut deepest, mut to_visit) = (0, vec![(root, 1)]);
    while let Some((node, depth)) = to_visit.pop() {
        deepest = deepest.max(depth);
        to_visit.extend(parts(node).into_iter().map(|part| (part, depth + 1)));
    }
    deepest
}

/// What an expression is put together from.
fn parts(node: &IdedExpr) -> Vec<&IdedExpr> {
    fn of_entries(entries: &[IdedEntryExpr]) -> Vec<&IdedExpr> {
        let parts = entries.iter().flat_map(|entry| match &entry.expr {
            EntryExpr::StructField(field) => vec![&field.value],
            EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        });
        parts.collect()
    }
    match &node.expr {
        Node::Unspecified | Node::Literal(_) | Node::Ident(_) => vec![],
        Node::Select(select) => vec![&select.operand],
        Node::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Node::List(list) => list.elements.iter().collect(),
        Node::Map(map) => of_entries(&map.entries),
        Node::Struct(made) => of_entries(&made.entries),
        Node::Comprehension(loops) => {
            vec![&loops.iter_range, &loops.accu_init, &loops.loop_cond, &loops.loop_step, &loops.result]
        }
    }
}

/// In words that say what to look at.
fn told(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("there is no `{key}`"),
        error => error.to_string(),
    }
}

/// What a JSON value is, in words.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// What expressions see.
pub struct Scope<'a>(Context<'a, 'a>);

impl Scope<'_> {
    pub fn at(now: Time) -> Scope<'static> {
        let mut context = context();
        let now = chrono::DateTime::from_timestamp_micros(now.micros()).unwrap_or_default();
        context.add_variable_from_value("now", Cel::Timestamp(now.fixed_offset()));
        Scope(context)
    }

    pub fn set(&mut self, name: &str, value: &Value) {
        self.0.add_variable_from_value(name, to_cel(value));
    }

    /// A map whose fields are already there, and one more.
    pub fn set_with(&mut self, name: &str, fields: &Value, field: &str, value: &Value) {
        let mut map = HashMap::new();
        for (key, value) in fields.as_object().into_iter().flatten() {
            map.insert(Key::from(key.as_str()), to_cel(value));
        }
        map.insert(Key::from(field), to_cel(value));
        self.0.add_variable_from_value(name, Cel::Map(CelMap { map: Arc::new(map) }));
    }

    pub fn set_map(&mut self, name: &str, fields: &Map<String, Value>) {
        self.0.add_variable_from_value(name, map_to_cel(fields));
    }
}

/// Whole numbers are integers, as in expressions: `saga.count + 1` adds.
fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(is) => Cel::Bool(*is),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Cel::Int(number),
            (None, Some(number)) => Cel::UInt(number),
            (None, None) => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(list) => Cel::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(fields) => map_to_cel(fields),
    }
}

fn map_to_cel(fields: &Map<String, Value>) -> Cel {
    let map = fields.iter().map(|(key, value)| (Key::from(key.as_str()), to_cel(value))).collect();
    Cel::Map(CelMap { map: Arc::new(map) })
}

/// What cannot be JSON is named.
fn to_json(value: &Cel) -> Result<Value, &'static str> {
    Ok(match value {
        Cel::Null => Value::Null,
        Cel::Bool(is) => Value::Bool(*is),
        Cel::Int(number) => Value::from(*number),
        Cel::UInt(number) => Value::from(*number),
        Cel::Float(number) => Number::from_f64(*number).map(Value::Number).ok_or("a number that is none")?,
        Cel::String(text) => Value::String(text.as_str().to_owned()),
        Cel::List(list) => Value::Array(list.iter().map(to_json).collect::<Result<_, _>>()?),
        Cel::Map(map) => {
            let mut fields: Vec<_> = map.map.iter().collect();
            // In one order: the same event gives the same bytes.
            fields.sort_by(|a, b| a.0.cmp(b.0));
            let field = |(key, value): (&Key, &Cel)| Ok((key.to_string(), to_json(value)?));
            Value::Object(fields.into_iter().map(field).collect::<Result<_, &'static str>>()?)
        }
        Cel::Timestamp(time) => Value::String(Time::from_micros(time.timestamp_micros()).to_string()),
        Cel::Duration(_) => return Err("a duration"),
        Cel::Bytes(_) => return Err("bytes"),
        // What may be there, as in `event.data.?name`, and is not, is null.
        other => match <&OptionalValue>::try_from(other) {
            Ok(optional) => optional.value().map_or(Ok(Value::Null), to_json)?,
            Err(_) => return Err("something"),
        },
    })
}

/// Looks for names that nothing has.
struct Walk<K> {
    scope: Vec<String>,
    knows: K,
    unknown: Vec<String>,
}

impl<K: Fn(&str, &str) -> bool> Walk<K> {
    fn node(&mut self, node: &IdedExpr) {
        match &node.expr {
            Node::Unspecified | Node::Literal(_) => {}
            Node::Ident(name) => {
                // The names of types are known everywhere.
                if !self.scope.contains(name) && !is_known(name) {
                    let names: Vec<&str> =
                        self.scope.iter().map(String::as_str).filter(|name| !name.starts_with('@')).collect();
                    self.say(format!("there is no `{name}`; there are {}", names.join(", ")));
                }
            }
            Node::Select(select) => {
                self.field(&select.operand, &select.field);
                self.node(&select.operand);
            }
            Node::Call(call) => {
                // `saga.?field` is a call, too.
                if let ("_?._", [operand, IdedExpr { expr: Node::Literal(literal), .. }]) =
                    (&*call.func_name, &call.args[..])
                    && let cel::common::ast::LiteralValue::String(field) = literal
                {
                    self.field(operand, field.inner());
                }
                if !is_function(&call.func_name) {
                    self.say(format!("there is no function `{}`", call.func_name));
                }
                parts(node).into_iter().for_each(|part| self.node(part));
            }
            Node::List(_) | Node::Map(_) | Node::Struct(_) => parts(node).into_iter().for_each(|part| self.node(part)),
            Node::Comprehension(loops) => {
                self.node(&loops.iter_range);
                self.node(&loops.accu_init);
                let outside = self.scope.len();
                self.scope.extend([loops.iter_var.clone(), loops.accu_var.clone()]);
                self.scope.extend(loops.iter_var2.clone());
                self.node(&loops.loop_cond);
                self.node(&loops.loop_step);
                self.node(&loops.result);
                self.scope.truncate(outside);
            }
        }
    }

    fn field(&mut self, operand: &IdedExpr, field: &str) {
        if let Node::Ident(name) = &operand.expr
            && self.scope.contains(name)
            && !(self.knows)(name, field)
        {
            self.say(format!("`{name}` has no `{field}`"));
        }
    }

    fn say(&mut self, what: String) {
        if !self.unknown.contains(&what) {
            self.unknown.push(what);
        }
    }
}

/// Whether anything of this name can be called: who calls it with too little hears that, and not that there is none.
fn is_function(name: &str) -> bool {
    let is_operator = |first: char| !first.is_alphabetic();
    if name.starts_with(is_operator) {
        return true;
    }
    is_known(&format!("{name}()")) || is_known(&format!("''.{name}()"))
}

/// Whether what is named is there, whatever else is wrong with how it is used.
fn is_known(text: &str) -> bool {
    let Ok(program) = ENV.compile(text) else { return true };
    !matches!(program.execute(&context()), Err(ExecutionError::UndeclaredReference(_)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn eval(text: &str) -> Result<Value, String> {
        let mut scope = Scope::at(Time::from_micros(1_790_000_000_000_000));
        scope.set(
            "event",
            &json!({"data": {"n": 3, "big": u64::MAX, "half": 0.5, "ids": ["a", "b", "a"], "none": null}}),
        );
        Expr::read(text)?.eval(&scope)
    }

    #[test]
    fn json_goes_in_and_comes_out_as_it_was() {
        assert_eq!(
            eval("event.data"),
            Ok(json!({"n": 3, "big": u64::MAX, "half": 0.5, "ids": ["a", "b", "a"], "none": null}))
        );
        assert_eq!(eval("event.data.n + 1"), Ok(json!(4)));
        assert_eq!(eval("event.data.half + 1.0"), Ok(json!(1.5)));
        assert_eq!(eval("event.data.ids.distinct()"), Ok(json!(["a", "b"])));
        assert_eq!(eval("event.data.ids.unique()"), Ok(json!(["a", "b"])));
        assert_eq!(eval("[1, '1', 1, [1], [1]].unique()"), Ok(json!([1, "1", [1]])));
        assert_eq!(eval("event.data.?missing.orValue('x')"), Ok(json!("x")));
        assert_eq!(eval("[event.data.?missing, event.data.?n]"), Ok(json!([null, 3])));
        assert_eq!(eval("'a/b'.split('/')[1]"), Ok(json!("b")));
        assert_eq!(eval("now + duration('1s')"), Ok(json!("2026-09-21T14:13:21.000Z")));
    }

    #[test]
    fn what_goes_wrong_is_said_in_words() {
        assert_eq!(eval("event.data.missing"), Err("`event.data.missing`: there is no `missing`".into()));
        assert_eq!(eval("duration('1s')"), Err("`duration('1s')`: gives a duration, which is no JSON".into()));
        assert!(eval("event.data.n + ").unwrap_err().starts_with("`event.data.n + ` is no expression: "));
        assert!(eval("event.data.ids + 1").unwrap_err().len() < 400);
        let sum = |terms: usize| vec!["1"; terms].join("+");
        assert_eq!(eval(&sum(49)), Ok(json!(49)));
        assert!(eval(&sum(60)).unwrap_err().contains("is nested over 50 deep"));
        assert!(eval(&sum(5000)).unwrap_err().starts_with("an expression has at most 4096 bytes"));
    }

    #[test]
    fn names_that_nothing_has_are_found_before_anything_runs() {
        let unknown = |text: &str| {
            let knows = |name: &str, field: &str| name != "saga" || field == "files";
            Expr::read(text).expect("it can be read").unknown(&["event", "saga"], knows)
        };
        let none: [&str; 0] = [];
        assert_eq!(unknown("saga.files.all(file, file in event.data.done) && size(saga.files) > 0"), none);
        assert_eq!(unknown("saga.fils.size()"), ["`saga` has no `fils`"]);
        assert_eq!(unknown("has(saga.fils)"), ["`saga` has no `fils`"]);
        assert_eq!(unknown("saga.?fils.orValue([])"), ["`saga` has no `fils`"]);
        assert_eq!(unknown("evnt.data"), ["there is no `evnt`; there are event, saga"]);
        assert_eq!(unknown("saga.files.map(f, g)"), ["there is no `g`; there are event, saga, f"]);
        assert_eq!(unknown("sise(saga.files)"), ["there is no function `sise`"]);
    }
}
