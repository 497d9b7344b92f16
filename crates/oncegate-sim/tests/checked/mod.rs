//! A model, checked by the model checker.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// Checks every world within the model's bounds.
pub fn assert_sound<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Debug + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq,
{
    let began = Instant::now();
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (worlds, steps) = (checker.unique_state_count(), checker.state_count());
    println!("{name}: {worlds} distinct worlds, {steps} steps, no violation; {:.1?}", began.elapsed());
    checker.assert_properties();
}

/// Searches a path that breaks each property of `broken`, and prints it (not always the shortest).
pub fn assert_breaks<M>(name: &str, model: M, broken: &[&'static str])
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Debug + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq,
{
    let wanted = BTreeSet::from_iter(broken.iter().copied());
    let checker = model.checker().finish_when(HasDiscoveries::AllOf(wanted)).spawn_bfs().join();
    for property in broken {
        let path = checker.assert_any_discovery(property);
        println!("{name}: not so: {property}: {:?}", path.into_actions());
    }
}
