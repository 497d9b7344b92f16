//! The parts of an expression's tree.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr as Node, IdedEntryExpr};

/// The direct parts of an expression.
pub(crate) fn parts(node: &IdedExpr) -> Vec<&IdedExpr> {
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
