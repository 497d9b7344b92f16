//! The properties that must hold in every world, and the events that must occur in some world.

use oncegate_core::{Lost, Token};
use stateright::Property;

use super::worker::{Letter, Verb};
use super::{ClaimModel, Event, World, shelf};

pub const ONE_LIVE_OWNER: &str = "at most one worker is accepted as the owner";
pub const TOKENS_GROW: &str = "each owner's token is larger than every earlier one's";
pub const ONE_OUTCOME: &str = "a settled claim keeps its outcome while its window lasts";
pub const STALE_WRITES_CHANGE_NOTHING: &str = "a stale owner's write changes nothing";
pub const HELD_EFFECT_STARTS_ONCE: &str = "a held claim's effect is started at most once in a window";

type Rule = Property<ClaimModel>;

pub(super) fn of(lost: Lost) -> Vec<Rule> {
    let mut properties = vec![
        Rule::always(ONE_LIVE_OWNER, one_live_owner),
        Rule::always(TOKENS_GROW, |_, world| world.just != Some(Event::TokenDidNotGrow)),
        Rule::always(ONE_OUTCOME, one_outcome),
        Rule::always(STALE_WRITES_CHANGE_NOTHING, |_, world| world.just != Some(Event::StaleWriteApplied)),
        Rule::sometimes("a late write is fenced", |_, world| world.just == Some(Event::LateWriteFenced)),
        Rule::sometimes("an answer is lost and the settle repeated", |_, world| {
            world.just == Some(Event::SettleRepeated)
        }),
        Rule::sometimes("a later window is settled", |_, world| {
            world.ledger.outcome().is_some() && world.now >= shelf::first_window_ends()
        }),
    ];
    match lost {
        Lost::TakeOver => properties
            .push(Rule::sometimes("a lost claim is taken over", |_, world| world.just == Some(Event::TakenOver))),
        Lost::Hold => properties.extend([
            Rule::always(HELD_EFFECT_STARTS_ONCE, |_, world| world.ledger.starts() <= 1),
            Rule::sometimes("a lost claim is held", |_, world| world.just == Some(Event::Held)),
        ]),
    }
    properties
}

/// Sends the store a renewal for each worker that believes it is the owner.
fn one_live_owner(model: &ClaimModel, world: &World) -> bool {
    let accepts = |token: Token| {
        let renew = Letter { verb: Verb::Renew, token: Some(token) }.command(shelf::terms(model.lost));
        world.shelf.consider(&renew, world.now, model.fault).is_accepted()
    };
    world.workers.iter().filter_map(|worker| worker.token).filter(|token| accepts(*token)).count() <= 1
}

/// An acknowledged outcome stays stored, live and unchanged, until the window ends.
fn one_outcome(_: &ClaimModel, world: &World) -> bool {
    world.ledger.outcome().is_none_or(|(state, outcome)| {
        let same = |claim: &oncegate_core::Claim| {
            claim.is_live(world.now) && claim.state == *state && claim.outcome == *outcome
        };
        world.shelf.record().is_some_and(same)
    })
}
