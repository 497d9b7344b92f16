//! What expressions read of an event and of a saga's data. The rest is not converted to values for them.

use std::collections::BTreeSet;

use cel::IdedExpr;
use cel::common::ast::{Expr as Node, LiteralValue};
use serde_json::Value;

use crate::parts::parts;

/// The fields of one map that are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The map is used as a whole somewhere.
    all: bool,
    names: BTreeSet<String>,
}

impl Fields {
    pub fn have(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    /// Whether the value is used as a whole, even if it is not a map.
    pub fn have_all(&self) -> bool {
        self.all
    }

    fn add(&mut self, other: &Fields) {
        self.all |= other.all;
        self.names.extend(other.names.iter().cloned());
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads {
    /// The fields of `event.data`.
    pub data: Fields,
    pub saga: Fields,
}

impl Reads {
    pub fn of(node: &IdedExpr) -> Reads {
        let mut reads = Reads::default();
        reads.look(node);
        reads
    }

    pub fn add(&mut self, other: &Reads) {
        self.data.add(&other.data);
        self.saga.add(&other.saga);
    }

    fn look(&mut self, node: &IdedExpr) {
        if let Some((operand, field)) = selected(node) {
            match &operand.expr {
                Node::Ident(name) if name == "saga" => {
                    self.saga.names.insert(field.to_owned());
                    return;
                }
                Node::Ident(name) if name == "event" => {
                    self.data.all |= field == "data";
                    return;
                }
                _ => {}
            }
            if let Some((IdedExpr { expr: Node::Ident(name), .. }, "data")) = selected(operand)
                && name == "event"
            {
                self.data.names.insert(field.to_owned());
                return;
            }
        }
        match &node.expr {
            Node::Ident(name) if name == "event" => self.data.all = true,
            Node::Ident(name) if name == "saga" => self.saga.all = true,
            _ => parts(node).into_iter().for_each(|part| self.look(part)),
        }
    }
}

/// `operand.field`, or `operand.?field`.
fn selected(node: &IdedExpr) -> Option<(&IdedExpr, &str)> {
    match &node.expr {
        Node::Select(select) => Some((&*select.operand, &*select.field)),
        Node::Call(call) if call.func_name == "_?._" => match &call.args[..] {
            [operand, IdedExpr { expr: Node::Literal(LiteralValue::String(field)), .. }] => {
                Some((operand, field.inner()))
            }
            _ => None,
        },
        _ => None,
    }
}

/// The fields of a map that are read. Of any other value nothing, unless it is used as a whole.
pub(crate) fn read_of<'a>(
    fields: &'a Fields,
    value: &'a Value,
) -> Option<impl Iterator<Item = (&'a String, &'a Value)>> {
    let map = value.as_object()?;
    Some(map.iter().filter(|(name, _)| fields.have(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(text: &str) -> Reads {
        crate::expr::Expr::read(text).expect("it can be read").reads().clone()
    }

    #[test]
    fn only_the_fields_that_are_named_are_read_unless_a_map_is_used_as_a_whole() {
        let named = reads("saga.files.all(f, f in event.data.done) && has(event.data.n) && event.data.?m.hasValue()");
        assert!(named.saga.have("files") && !named.saga.have("other"));
        assert!(["done", "n", "m"].iter().all(|name| named.data.have(name)) && !named.data.have("document"));
        assert!(!reads("event.id == 'a'").data.have("document"));
        for whole in ["event.data", "event", "event['data'].x", "size(event.data)", "event.data.exists(k, k == 'a')"] {
            assert!(reads(whole).data.have_all(), "{whole}");
        }
        assert!(reads("saga == {}").saga.have_all());
    }
}
