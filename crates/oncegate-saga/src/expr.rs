//! Expressions: CEL over `event`, `saga` and `now`.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock};

use cel::common::ast::Expr as Node;
use cel::common::types::{CelMap, CelMapKey};
use cel::common::value::Val;
use cel::{Context, Env, ExecutionError, IdedExpr, Program, Value as Cel, extensions};
use oncegate_core::Time;
use serde_json::{Map, Value};

use crate::parts::parts;
use crate::patterns::{Patterns, patterns_of};
use crate::reads::{Fields, Reads, read_of};
use crate::steps::{self, Steps, metered, parts_of};
use crate::values::{from_json, kind_of, to_json, unique};
use crate::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX};

/// The longest error text of an expression: it repeats values, which may be large.
const ERROR_CHARS_MAX: usize = 300;

/// The functions of CEL, and `unique`. `unique` is like `distinct`, which compares each element with each other, but works for lists of
/// any length.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for extension in [extensions::strings, extensions::lists, steps::install, unique] {
        env.add_extension(extension).expect("extensions do not clash");
    }
    Arc::new(env)
});

fn context() -> Context<'static, 'static> {
    Context::with_env(ENV.clone())
}

/// An expression that has been read.
#[derive(Debug)]
pub struct Expr {
    text: String,
    program: Program,
    /// The same expression, with a meter around expensive operations.
    metered: IdedExpr,
    patterns: Arc<Patterns>,
    parts: u64,
    reads: Reads,
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
        let tree = program.expression();
        if depth(tree) > EXPRESSION_DEPTH_MAX {
            return Err(format!("`{text}` is nested over {EXPRESSION_DEPTH_MAX} deep: split it up, by way of `data`"));
        }
        let patterns = Arc::new(patterns_of(tree).map_err(|why| format!("`{text}`: {why}"))?);
        let (metered, parts, reads) = (metered(tree), parts_of(tree), Reads::of(tree));
        Ok(Expr { text: text.to_owned(), program, metered, patterns, parts, reads })
    }

    /// What the expression reads of an event and of a saga's data.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Describes the unknown names that the expression uses: variables other than these, fields of the event, of the saga's data, and
    /// functions.
    pub fn unknown(&self, variables: &[&str], knows: impl Fn(&str, &str) -> bool) -> Vec<String> {
        let mut walk =
            Walk { scope: variables.iter().map(|name| (*name).to_owned()).collect(), knows, unknown: vec![] };
        walk.node(self.program.expression());
        walk.unknown
    }

    pub fn eval(&self, scope: &Scope<'_>) -> Result<Value, String> {
        let wrong = |error: String| format!("`{}`: {error}", self.text);
        let evaluated = scope.steps.charge(self.parts).and_then(|()| {
            scope.steps.metering(&self.patterns, || {
                let value = Cel::resolve_val(&self.metered, &scope.context).map_err(|error| told(&error))?;
                Ok((steps::result_weight(value.as_ref(), scope.steps.left()), value))
            })
        });
        // An expression may go on after an error, so the meter decides.
        if scope.steps.are_exceeded() {
            return Err(wrong(scope.steps.complaint()));
        }
        let (weight, value) = evaluated.map_err(wrong)?;
        scope.steps.charge(weight).map_err(wrong)?;
        to_json(value.as_ref()).map_err(|what| wrong(format!("gives {what}, which is no JSON")))
    }

    pub fn eval_bool(&self, scope: &Scope<'_>) -> Result<bool, String> {
        match self.eval(scope)? {
            Value::Bool(is) => Ok(is),
            other => Err(format!("`{}` gives {}, not true or false", self.text, kind_of(&other))),
        }
    }
}

/// The depth of an expression's tree. Not recursive, because the tree may be deeper than the stack.
fn depth(root: &IdedExpr) -> usize {
    let (mut deepest, mut to_visit) = (0, vec![(root, 1)]);
    while let Some((node, depth)) = to_visit.pop() {
        deepest = deepest.max(depth);
        to_visit.extend(parts(node).into_iter().map(|part| (part, depth + 1)));
    }
    deepest
}

/// Describes an error in words that say what to check.
fn told(error: &ExecutionError) -> String {
    let mut clipped = Clipped { text: String::new(), left: ERROR_CHARS_MAX };
    // Writing fails once the text is long enough.
    let _ = match error {
        ExecutionError::NoSuchKey(key) => write!(clipped, "there is no `{key}`"),
        error => write!(clipped, "{error}"),
    };
    clipped.text
}

/// Keeps only the beginning of what is written.
struct Clipped {
    text: String,
    left: usize,
}

impl Write for Clipped {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let end = more.char_indices().nth(self.left).map_or(more.len(), |(end, _)| end);
        self.text.push_str(&more[..end]);
        self.left -= more[..end].chars().count();
        if end < more.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// What expressions see, and the cost limit.
pub struct Scope<'a> {
    context: Context<'a, 'a>,
    steps: &'a Steps,
}

impl Scope<'_> {
    pub fn at(now: Time, steps: &Steps) -> Scope<'_> {
        let mut context = context();
        let now = chrono::DateTime::from_timestamp_micros(now.micros()).unwrap_or_default();
        context.add_variable_from_value("now", Cel::Timestamp(now.fixed_offset()));
        Scope { context, steps }
    }

    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), String> {
        self.charge(name, value)?;
        self.context.add_variable_as_val(name, from_json(value));
        Ok(())
    }

    /// Sets the event: the fields beside its data, and the parts of the data that are read.
    pub fn set_event(&mut self, envelope: &Value, data: &Value, reads: &Fields) -> Result<(), String> {
        let seen = match read_of(reads, data) {
            Some(fields) => self.map("event.data", fields)?,
            None => {
                self.charge("event.data", if reads.have_all() { data } else { &Value::Null })?;
                from_json(if reads.have_all() || !data.is_array() { data } else { &Value::Null })
            }
        };
        let mut fields: HashMap<CelMapKey<'static>, Box<dyn Val>> = HashMap::new();
        for (name, value) in envelope.as_object().into_iter().flatten() {
            fields.insert(CelMapKey::from(name.clone()), from_json(value));
        }
        fields.insert(CelMapKey::from("data"), seen);
        self.context.add_variable_as_val("event", Box::new(CelMap::from(fields)));
        Ok(())
    }

    /// Sets the parts of a saga's data that are read.
    pub fn set_saga(&mut self, data: &Map<String, Value>, reads: &Fields) -> Result<(), String> {
        let seen = self.map("saga", data.iter().filter(|(name, _)| reads.have(name)))?;
        self.context.add_variable_as_val("saga", seen);
        Ok(())
    }

    fn map<'m>(
        &self,
        name: &str,
        fields: impl Iterator<Item = (&'m String, &'m Value)>,
    ) -> Result<Box<dyn Val>, String> {
        let mut map: HashMap<CelMapKey<'static>, Box<dyn Val>> = HashMap::new();
        for (field, value) in fields {
            self.charge(name, value)?;
            map.insert(CelMapKey::from(field.clone()), from_json(value));
        }
        Ok(Box::new(CelMap::from(map)))
    }

    fn charge(&self, name: &str, value: &Value) -> Result<(), String> {
        let weight = steps::json_weight(value, self.steps.left().saturating_add(1));
        self.steps.charge(weight).map_err(|why| format!("reading `{name}` {why}"))
    }
}

/// Searches for unknown names.
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

/// Whether a function of this name exists. A call with too few arguments gets an error about that, not about an unknown function.
fn is_function(name: &str) -> bool {
    let is_operator = |first: char| !first.is_alphabetic();
    if name.starts_with(is_operator) {
        return true;
    }
    is_known(&format!("{name}()")) || is_known(&format!("''.{name}()"))
}

/// Whether the name exists, even if it is used incorrectly.
fn is_known(text: &str) -> bool {
    let Ok(program) = ENV.compile(text) else { return true };
    !matches!(program.execute(&context()), Err(ExecutionError::UndeclaredReference(_)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn eval(text: &str) -> Result<Value, String> {
        eval_within(
            text,
            &json!({"n": 3, "big": u64::MAX, "half": 0.5, "ids": ["a", "b", "a"], "none": null}),
            u64::MAX,
        )
    }

    fn eval_within(text: &str, data: &Value, steps: u64) -> Result<Value, String> {
        let expression = Expr::read(text)?;
        let steps = Steps::up_to(steps);
        let mut scope = Scope::at(Time::from_micros(1_790_000_000_000_000), &steps);
        scope.set_event(&json!({}), data, &expression.reads().data)?;
        expression.eval(&scope)
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

    fn steps_of(text: &str, data: &Value) -> u64 {
        let (expression, steps) = (Expr::read(text).expect("it can be read"), Steps::up_to(u64::MAX));
        let mut scope = Scope::at(Time::LONG_AGO, &steps);
        scope.set_event(&json!({}), data, &expression.reads().data).expect("there is no limit");
        expression.eval(&scope).unwrap_or_else(|why| panic!("{why}"));
        steps.taken()
    }

    #[test]
    fn what_is_not_read_costs_nothing() {
        let small = json!({"ids": [1, 2, 3]});
        let large = json!({"ids": [1, 2, 3], "document": vec!["a page of text"; 100_000]});
        let text = "event.data.ids.exists(id, id == 2) && has(event.data.ids) && event.data.?ids.hasValue()";
        assert_eq!(steps_of(text, &small), steps_of(text, &large));
        assert_eq!(eval_within("event.data.ids", &large, 100), Ok(json!([1, 2, 3])));
    }

    #[test]
    fn a_metered_expression_means_what_it_meant() {
        let data = json!({"ids": ["b", "a", "b"], "n": [3, 1, 2], "deep": {"x": [1, {"y": "z"}]}, "text": "one,two"});
        for (text, value) in [
            ("event.data.ids.map(id, id + '!')", json!(["b!", "a!", "b!"])),
            ("event.data.ids.map(id, id != 'a', id)", json!(["b", "b"])),
            ("event.data.n.filter(n, n in [1, 2])", json!([1, 2])),
            ("event.data.n.exists_one(n, n == 2)", json!(true)),
            ("event.data.n.all(n, n > 0 && n < 4)", json!(true)),
            ("event.data.n.map(n, event.data.n.map(m, n * m).filter(p, p > 5))", json!([[9, 6], [], [6]])),
            ("event.data.n.sort() + [event.data.deep]", json!([1, 2, 3, {"x": [1, {"y": "z"}]}])),
            ("event.data.n.sortBy(n, -n)", json!([3, 2, 1])),
            ("event.data.deep == {'x': [1, {'y': 'z'}]}", json!(true)),
            ("{'x': [1, {'y': 'z'}]} == event.data.deep", json!(true)),
            ("event.data.deep.map(key, key)", json!(["x"])),
            ("'x' in event.data.deep && event.data.deep['x'][0] == 1", json!(true)),
            ("event.data.?deep.?x[?1].?y.orValue('none')", json!("z")),
            ("event.data.?none.optMap(x, size(x)).orValue(0)", json!(0)),
            ("optional.of(event.data.text).orValue('')", json!("one,two")),
            ("event.data.text.split(',').join('+')", json!("one+two")),
            ("event.data.text.indexOf('two') + event.data.text.lastIndexOf('o')", json!(10)),
            ("event.data.text.replace('one', 'three').upperAscii()", json!("THREE,TWO")),
            ("event.data.text.matches('^one') && !matches(event.data.text, '^two')", json!(true)),
            ("event.data.ids.filter(id, id.matches('^(?i)A$') || 'é' .matches('^[à-ü]{2}$'))", json!(["a"])),
            ("event.data.n[1 - 1] + event.data.n[0.0 + 1.0] - event.data.?n[?0.5 + 0.0].orValue(-3)", json!(7)),
            ("event.data.text in {event.data.text: 1} && -event.data.n[0] % 2 * 3 / 1 <= 1 - 4", json!(true)),
            ("event.data.?text.optFlatMap(text, optional.of(text + '!')).orValue('')", json!("one,two!")),
            ("event.data.text.replace(event.data.text.replace(',two', ''), 'two'.replace('w', 'o'))", json!("too,two")),
            ("'%s has %d'.format([event.data.text, size(event.data.n)])", json!("one,two has 3")),
            ("lists.range(3).map(i, i * 2)", json!([0, 2, 4])),
            ("event.data.n.slice(1, 3).reverse()", json!([2, 1])),
            ("[event.data.n, [[7]]].flatten()", json!([3, 1, 2, [7]])),
            ("event.data.ids.distinct().size() == event.data.ids.unique().size()", json!(true)),
            ("event.data.ids.exists(id, id == 'a') ? 'yes' : 'no'", json!("yes")),
            ("timestamp('2026-01-31T09:30:00Z').getFullYear() + int('1')", json!(2027)),
            ("strings.quote('a') + string(1)", json!("\"a\"1")),
        ] {
            let (expression, steps) = (Expr::read(text).unwrap_or_else(|why| panic!("{why}")), Steps::default());
            let mut scope = Scope::at(Time::LONG_AGO, &steps);
            scope.set_event(&json!({}), &data, &expression.reads().data).expect("it is small");
            let plain = Cel::resolve_val(expression.program.expression(), &scope.context);
            let plain = plain.unwrap_or_else(|error| panic!("{text}: {}", told(&error)));
            assert_eq!(to_json(plain.as_ref()).as_ref(), Ok(&value), "{text}");
            assert_eq!(expression.eval(&scope).as_ref(), Ok(&value), "{text}");
        }
    }

    #[test]
    fn a_pattern_stands_in_the_definition() {
        let computed = "the pattern of `matches` is computed: write it as a text, as in `matches('^[a-z]+$')`";
        for text in [
            "event.data.ids.all(id, id.matches(event.data.pattern))",
            "matches(event.data.n, saga.pattern)",
            ".matches(event.data.n, saga.pattern)",
            "'a'.matches('a' + 'b')",
            "'a'.matches(1)",
        ] {
            assert_eq!(Expr::read(text).map(|_| ()), Err(format!("`{text}`: {computed}")));
        }
        let wrong = |text: &str| Expr::read(text).expect_err(text);
        assert_eq!(
            wrong("'a'.matches('a(b')"),
            "`'a'.matches('a(b')`: the pattern `a(b` cannot be compiled: unclosed group"
        );
        assert_eq!(
            wrong("'a'.matches('(a|b)*a(a|b){4000}c')"),
            "`'a'.matches('(a|b)*a(a|b){4000}c')`: the pattern `(a|b)*a(a|b){4000}c` takes over 262144 bytes when it is compiled: let it repeat less"
        );
        assert_eq!(
            wrong("'a'.matches('\\\\w{1000}')"),
            "`'a'.matches('\\\\w{1000}')`: the pattern `\\w{1000}` cannot be compiled: Compiled regex exceeds size limit of 10485760 bytes."
        );
        assert_eq!(
            eval("event.data.n.matches('^a')"),
            Err("`event.data.n.matches('^a')`: found no matching overload for 'matches' applied to 'int.(string)'"
                .into())
        );
    }

    #[test]
    fn a_pattern_is_compiled_once_and_charged_by_its_size() {
        let ids: Vec<String> = (0..6000).map(|i| format!("id-{i}")).collect();
        let begun = std::time::Instant::now();
        let each = "event.data.all(id, id.matches('^[\\\\w-]{1,64}$'))";
        assert_eq!(eval_within(each, &json!(ids), crate::STEPS_DEFAULT), Ok(json!(true)));
        // Compiling the pattern for each element would take minutes.
        assert!(begun.elapsed().as_secs() < 20, "it took {:?}", begun.elapsed());
        let of = |pattern: &str| steps_of(&format!("event.data.matches('{pattern}')"), &json!("x".repeat(999)));
        let small = of("^searches/[^/]+/[^/]+/.+");
        assert!((1000..1100).contains(&small), "{small}");
        assert_eq!(of("(a|b)*a(a|b){500}c") - small, 31 * 1000);
        assert_eq!(of("^\\\\p{L}") - small, 63 * 1000);
    }

    #[test]
    fn the_deepest_expression_fits_the_stack() {
        let nested = |around: &str, levels: usize| {
            (0..levels).fold("event.data.n".to_owned(), |inner, _| around.replace('#', &inner))
        };
        for around in [
            "# + event.data.n",
            "event.data.n - #",
            "[#]",
            "{'a': #}",
            "(# < event.data.n)",
            "event.data.m[#]",
            "event.data.s.replace(#, event.data.s)",
            "string(#)",
            "[1].map(x, #)",
            "[1].all(x, #)",
            "event.data.?n.optMap(x, #)",
        ] {
            let fits = |levels: &usize| Expr::read(&nested(around, *levels)).is_ok();
            let levels = (1..).take_while(fits).last().expect("one fits");
            let deeper = Expr::read(&nested(around, levels + 1)).expect_err("it is too deep");
            assert!(deeper.ends_with("is nested over 50 deep: split it up, by way of `data`"), "{deeper}");
            let text = nested(around, levels);
            let evaluate = move || eval_within(&text, &json!({"n": 1, "m": {"a": 1}, "s": "a"}), u64::MAX);
            let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(evaluate).expect("a thread starts");
            // Some expressions fail at their innermost part, which is as deep.
            let _ = thread.join().expect("it evaluates");
        }
    }

    #[test]
    fn a_key_that_is_no_whole_number_does_not_copy_the_list() {
        let data = json!({"list": [1, 2], "half": 0.5, "whole": 1.0});
        let of = |text: &str| eval_within(text, &data, u64::MAX);
        assert_eq!(of("event.data.list[event.data.whole]"), Ok(json!(2)));
        assert_eq!(of("event.data.?list[?event.data.half].hasValue()"), Ok(json!(false)));
        assert_eq!(
            of("event.data.list[event.data.half]"),
            Err("`event.data.list[event.data.half]`: found no matching overload for '_[_]' applied to '(list, null_type)'".into())
        );
    }

    #[test]
    fn every_way_to_spend_time_or_memory_ends_at_the_limit_soon() {
        let texts: Vec<String> = (0..6000).map(|i| format!("{i}")).collect();
        let ones = vec![1; 100_000];
        let data = json!({
            "wanted": texts, "have": texts, "ones": ones, "big": "x".repeat(1 << 20), "mid": "x".repeat(100_000),
            "n": 100_000, "m": {"a": 1},
        });
        for text in [
            "event.data.wanted.all(w, w in event.data.have)",
            "event.data.wanted.exists(w, !(w in event.data.have))",
            "event.data.wanted.map(w, event.data.have.filter(h, h == w))",
            "event.data.wanted.all(w, event.data.ones == event.data.ones)",
            "event.data.ones.map(x, event.data.ones).size()",
            "event.data.ones.map(x, [event.data.ones, event.data.ones]).size()",
            "event.data.ones.exists(x, event.data.?ones.hasValue() && x == 2)",
            "event.data.ones.all(x, {'a': event.data.ones} == {'a': event.data.ones})",
            "event.data.wanted.all(w, !event.data.big.contains(w))",
            "event.data.ones.map(x, event.data.big + 'x').size()",
            "event.data.ones.map(x, event.data.ones + [1]).size()",
            "event.data.wanted.all(w, size(event.data.big) > 0)",
            "event.data.wanted.exists(w, event.data.big.matches('(x?){100}y'))",
            "event.data.wanted.exists(w, event.data.big in event.data.m)",
            "event.data.wanted.exists(w, event.data.m[event.data.big] == 1)",
            "event.data.wanted.exists(w, event.data.?m[?event.data.big].hasValue())",
            "event.data.wanted.exists(w, size(w) > event.data.ones - 10)",
            "event.data.wanted.exists(w, 10 > event.data.ones * 2)",
            "event.data.wanted.exists(w, 10 > 2 / event.data.ones)",
            "event.data.wanted.exists(w, 10 > event.data.ones % 2)",
            "event.data.wanted.exists(w, event.data.ones + 1 == w)",
            "event.data.wanted.exists(w, event.data.big + 1 == w)",
            "event.data.wanted.exists(w, event.data.big > 5)",
            "event.data.wanted.exists(w, 5 > event.data.big)",
            "event.data.wanted.exists(w, .size(event.data.big) == 2)",
            "event.data.wanted.exists(w, event.data.?n.optFlatMap(n, event.data.ones)[3] == 2)",
            "event.data.mid.replace(event.data.big, (event.data.none.join('x') == '' || true) ? 'x' : 'y') == ''",
            "event.data.big.indexOf(event.data.big + 'y')",
            "event.data.big.replace('x', event.data.big).size()",
            "event.data.ones.distinct().size()",
            "event.data.wanted.map(w, lists.range(event.data.n)).size()",
            "event.data.wanted.map(w, event.data.big.split('')).size()",
            "event.data.wanted.join(event.data.big).size()",
            "['aaaaaaaaaaaaaaaa'].map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x)",
        ] {
            let begun = std::time::Instant::now();
            let result = eval_within(text, &data, crate::STEPS_DEFAULT);
            let took = begun.elapsed();
            println!("{took:?} {text}");
            let why = result.expect_err(text);
            assert!(
                why.starts_with(&format!("`{text}`: takes at least ")) && why.contains("may take 1000000"),
                "{why}"
            );
            // The expressions take less than a second on an idle machine.
            assert!(took.as_secs() < 20, "{text} took {took:?}");
        }
    }
}
