//! Conversion between JSON and the values of expressions.

use std::collections::{HashMap, HashSet};

use cel::common::types::{
    self, CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional, CelString, CelTimestamp,
    CelUInt, Kind,
};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use oncegate_core::Time;
use serde_json::{Number, Value};

/// The kind of a JSON value, in words.
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

/// Whole numbers become integers, as in expressions: `saga.count + 1` adds.
pub(crate) fn from_json(value: &Value) -> Box<dyn Val> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(is) => Box::new(CelBool::from(*is)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Box::new(CelInt::from(number)),
            (None, Some(number)) => Box::new(CelUInt::from(number)),
            (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(text) => Box::new(CelString::from(text.clone())),
        Value::Array(list) => Box::new(CelList::from(list.iter().map(from_json).collect::<Vec<_>>())),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| (CelMapKey::from(name.clone()), from_json(value));
            Box::new(CelMap::from(fields.iter().map(field).collect::<HashMap<_, _>>()))
        }
    }
}

/// Converts a value to JSON. An error names what cannot be JSON.
pub(crate) fn to_json(value: &(dyn Val + '_)) -> Result<Value, &'static str> {
    if let Some(text) = value.downcast_ref::<CelString>() {
        return Ok(Value::String(text.inner().to_owned()));
    }
    if let Some(list) = value.downcast_ref::<CelList>() {
        return Ok(Value::Array(list.inner().iter().map(|item| to_json(item.as_ref())).collect::<Result<_, _>>()?));
    }
    if let Some(map) = value.downcast_ref::<CelMap>() {
        let mut fields: Vec<_> = map.inner().iter().collect();
        // In a fixed order, so that the same event gives the same bytes.
        fields.sort_by(|a, b| a.0.cmp(b.0));
        let named = fields.into_iter().map(|(key, value)| Ok((name_of(key), to_json(value.as_ref())?)));
        return Ok(Value::Object(named.collect::<Result<_, &'static str>>()?));
    }
    if let Some(optional) = value.downcast_ref::<CelOptional>() {
        // An optional value that is missing, as in `event.data.?name`, becomes null.
        return optional.inner().map_or(Ok(Value::Null), to_json);
    }
    let scalar = match value.get_type().kind() {
        Kind::NullType => Some(Value::Null),
        Kind::Boolean => value.downcast_ref::<CelBool>().map(|is| Value::Bool(*is.inner())),
        Kind::Int => value.downcast_ref::<CelInt>().map(|number| Value::from(*number.inner())),
        Kind::UInt => value.downcast_ref::<CelUInt>().map(|number| Value::from(*number.inner())),
        Kind::Double => {
            let number = value.downcast_ref::<CelDouble>().and_then(|number| Number::from_f64(*number.inner()));
            return number.map(Value::Number).ok_or("a number that is none");
        }
        Kind::Timestamp => value
            .downcast_ref::<CelTimestamp>()
            .map(|time| Value::String(Time::from_micros(time.inner().timestamp_micros()).to_string())),
        Kind::Duration => return Err("a duration"),
        Kind::Bytes => return Err("bytes"),
        _ => None,
    };
    scalar.ok_or("something")
}

fn name_of(key: &CelMapKey<'_>) -> String {
    match key {
        CelMapKey::Bool(is) => is.inner().to_string(),
        CelMapKey::Int(number) => number.inner().to_string(),
        CelMapKey::String(text) => text.inner().to_owned(),
        CelMapKey::UInt(number) => number.inner().to_string(),
    }
}

/// Adds `list.unique()` to an environment.
pub(crate) fn unique(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_member_overload("unique", "list.unique()", types::LIST_TYPE, vec![], first_of_each)
}

fn first_of_each<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let wrong = |what: &str| ExecutionError::function_error("unique", format!("{what} in the list"));
    let mut seen = HashSet::new();
    let mut first: Vec<Box<dyn Val + 'v>> = vec![];
    let list = args.first().and_then(|list| list.as_iterable()).ok_or_else(|| wrong("something"))?;
    let mut items = list.iter();
    while let Some(item) = items.next() {
        if seen.insert(to_json(item).map_err(wrong)?.to_string()) {
            first.push(item.clone_as_boxed());
        }
    }
    Ok(CowVal::owned(CelList::from(first)))
}
