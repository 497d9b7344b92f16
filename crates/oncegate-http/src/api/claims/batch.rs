//! Many claims in one request.

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use oncegate::limits;
use serde_json::value::RawValue;

use super::body::{ClaimBody, ToClaim};
use super::{answered, decide, view};
use crate::api::extract::Json;
use crate::api::{Answered, App, Exchange, Under};
use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use crate::tenants::Tenant;

/// The most bytes of outcomes in one answer. Further outcomes are left out, and the answer says so.
const OUTCOMES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The memory that outcomes take while the answer is built: some exist twice.
const MAKING_BYTES: usize = OUTCOMES_BYTES_MAX + OUTCOMES_BYTES_MAX / 2;
/// The most bytes that one answer takes in the list without its outcome. A problem takes the most.
const ANSWER_BYTES: usize = 1024;
/// The most claims in one call of the store, which bounds the store's answer too.
const AT_ONCE: usize = 250;

type Place<'c> = (usize, &'c ToClaim);

/// Claim up to 1,000 keys
///
/// Answered in order, each with its own `status`. Of equal keys the first wins. Claims that wait do so all at once, and the
/// answer comes when the last of them is over: give them leases that are longer than their waits.
#[utoipa::path(post, path = "/api/claims/batch", tag = "claims", request_body = Vec<ClaimBody>,
    responses((status = 200, description = "One answer for each.")))]
pub async fn batch(
    State(app): State<Arc<App>>,
    Under(exchange): Under,
    caller: Caller,
    Json(bodies): Json<Vec<Box<RawValue>>>,
) -> Answered {
    if bodies.is_empty() || bodies.len() > limits::BATCH_MAX {
        let (found, max) = (bodies.len(), limits::BATCH_MAX);
        return Err(Kind::InvalidRequest.because(format!("a batch has 1 to {max} claims; this one has {found}")));
    }
    let tenant = exchange.tenant(&app);
    // A claim that was won cannot be refused with a retry. So the room for the answer is reserved before any claim is made.
    exchange.hold_answer(&app, bodies.len() * ANSWER_BYTES + MAKING_BYTES).await?;
    tenant.owe(bodies.len() - 1);
    let checked: Vec<Result<ToClaim, Problem>> =
        bodies.iter().map(|body| ClaimBody::parse(body)?.check(&caller.workspace, &app.config)).collect();
    let mut answers: Vec<Option<Result<view::Answered, Problem>>> = Vec::new();
    answers.resize_with(checked.len(), || None);
    let mut outcome_bytes_left = OUTCOMES_BYTES_MAX;
    for (number, round) in rounds(&checked).into_iter().enumerate() {
        // The owner of an equal key is in this same batch, and cannot settle before the batch is answered. Waiting for it
        // would be in vain.
        let may_wait = number == 0;
        let (waiting, at_once): (Vec<Place>, Vec<Place>) =
            round.into_iter().partition(|(_, claim)| may_wait && !claim.wait.is_zero());
        let mut keep = |(place, mut answer): (usize, Result<view::Answered, Problem>)| {
            if let Ok(answer) = &mut answer {
                answer.fit_into(&mut outcome_bytes_left);
            }
            answers[place] = Some(answer);
        };
        // Claims that wait go first, so that those won at once do not spend their leases on the wait.
        let mut answered = claim_waiting(&app, &exchange, waiting);
        while let Some(answer) = answered.next().await {
            keep(answer);
        }
        for some in at_once.chunks(AT_ONCE) {
            claim_at_once(&app, tenant, some).await.into_iter().for_each(&mut keep);
        }
    }
    let answers = answers.into_iter().zip(checked).map(|(answer, checked)| match (answer, checked) {
        (Some(answer), _) => answer,
        (None, Err(problem)) => Err(problem),
        (None, Ok(_)) => unreachable!("every claim is in some round"),
    });
    Ok(view::batch(answers).map(Body::new))
}

/// Equal keys go into different rounds, so that the first one wins regardless of timing.
fn rounds(checked: &[Result<ToClaim, Problem>]) -> Vec<Vec<Place<'_>>> {
    let mut left: Vec<Place> =
        checked.iter().enumerate().filter_map(|(place, claim)| Some((place, claim.as_ref().ok()?))).collect();
    let mut rounds = vec![];
    while !left.is_empty() {
        let mut seen = HashSet::with_capacity(left.len());
        let (round, later) = left.into_iter().partition(|(_, claim)| seen.insert(claim.key.id));
        rounds.push(round);
        left = later;
    }
    rounds
}

async fn claim_at_once(
    app: &App,
    tenant: &Tenant,
    claims: &[Place<'_>],
) -> Vec<(usize, Result<view::Answered, Problem>)> {
    let claimed = app.ledger.claim_all(claims.iter().map(|(_, claim)| (&claim.key, claim.terms.clone())).collect());
    let answers = claims.iter().zip(claimed.await);
    let answers = answers.map(|(&(place, claim), claimed)| (place, answered(tenant, claim, claimed)));
    answers.collect()
}

/// Yields answers as they arrive, so that an outcome without room is dropped at once and not kept until the last claim is
/// over.
fn claim_waiting<'c>(
    app: &'c App,
    exchange: &'c Exchange,
    claims: Vec<Place<'c>>,
) -> impl Stream<Item = (usize, Result<view::Answered, Problem>)> {
    let deciding = claims.into_iter().map(async move |(place, claim)| (place, decide(app, exchange, claim).await));
    deciding.collect::<FuturesUnordered<_>>()
}
