//! The patterns of `matches`. They are part of the definition, and are compiled when it is loaded.

use std::collections::HashMap;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr as Node, LiteralValue};
use regex::{Regex, bytes};

use crate::parts::parts;

/// The pattern size that counts as one step for each byte of a text: the time of a match may be proportional to both.
const STEP_BYTES: usize = 4 * 1024;
const STEPS_MAX: usize = 64;

/// The patterns of one expression, by their text.
pub(crate) type Patterns = HashMap<String, Pattern>;

#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    /// Steps for each byte of a text.
    steps: u64,
}

impl Pattern {
    fn compile(text: &str) -> Result<Pattern, String> {
        let regex = Regex::new(text).map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default();
            format!("the pattern `{text}` cannot be compiled: {}", reason.trim_start_matches("error: "))
        })?;
        // Classes are ASCII only: full Unicode makes a pattern large, but a match no slower.
        let within = |bytes| bytes::RegexBuilder::new(text).unicode(false).size_limit(bytes).build();
        let mut steps = 1;
        let steps = loop {
            match within(steps * STEP_BYTES) {
                Ok(_) => break steps,
                Err(regex::Error::CompiledTooBig(_)) if steps < STEPS_MAX => steps *= 2,
                Err(regex::Error::CompiledTooBig(limit)) => {
                    return Err(format!(
                        "the pattern `{text}` takes over {limit} bytes when it is compiled: let it repeat less"
                    ));
                }
                // The pattern names characters that are not ASCII.
                Err(_) => break STEPS_MAX,
            }
        };
        Ok(Pattern { regex, steps: steps as u64 })
    }

    pub fn steps(&self, text: &str) -> u64 {
        (text.len() as u64 + 1).saturating_mul(self.steps)
    }

    pub fn matches(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// The text and the pattern of a call of `matches`.
pub(crate) fn match_of(call: &CallExpr) -> Option<(&IdedExpr, &IdedExpr)> {
    match (call.func_name.trim_start_matches('.'), call.target.as_deref(), &call.args[..]) {
        ("matches", Some(text), [pattern]) | ("matches", None, [text, pattern]) => Some((text, pattern)),
        _ => None,
    }
}

/// The patterns of an expression.
pub(crate) fn patterns_of(node: &IdedExpr) -> Result<Patterns, String> {
    fn look(node: &IdedExpr, found: &mut Patterns) -> Result<(), String> {
        if let Node::Call(call) = &node.expr
            && let Some((_, pattern)) = match_of(call)
        {
            let Node::Literal(LiteralValue::String(text)) = &pattern.expr else {
                return Err(
                    "the pattern of `matches` is computed: write it as a text, as in `matches('^[a-z]+$')`".to_owned()
                );
            };
            if !found.contains_key(text.inner()) {
                found.insert(text.inner().to_owned(), Pattern::compile(text.inner())?);
            }
        }
        parts(node).into_iter().try_for_each(|part| look(part, found))
    }
    let mut found = Patterns::new();
    look(node, &mut found)?;
    Ok(found)
}
