//! Many claims in one request.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use futures::future::join_all;
use oncegate::limits;
use serde_json::value::RawValue;

use super::body::{ClaimBody, ToClaim};
use super::{answered, decide, view};
use crate::api::extract::Json;
use crate::api::{Answered, App, Handle};
use crate::auth::Caller;
use crate::connection::Head;
use crate::problem::{Kind, Problem};

/// Outcomes in one answer, all together; past it they are left out, and said to be.
const OUTCOMES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Claims asked for at once: what the store answers at once is bounded too.
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
    Extension(connection): Extension<Arc<Head>>,
    caller: Caller,
    Json(bodies): Json<Vec<Box<RawValue>>>,
) -> Answered {
    let app = Handle::new(app, connection);
    if bodies.is_empty() || bodies.len() > limits::BATCH_MAX {
        let (found, max) = (bodies.len(), limits::BATCH_MAX);
        return Err(Kind::InvalidRequest.because(format!("a batch has 1 to {max} claims; this one has {found}")));
    }
    app.rates.owe(&caller.workspace, bodies.len() - 1, Instant::now());
    let checked: Vec<Result<ToClaim, Problem>> =
        bodies.iter().map(|body| ClaimBody::parse(body)?.check(&caller.workspace, &app.config)).collect();
    let mut answers: Vec<Option<Result<view::Answered, Problem>>> = Vec::new();
    answers.resize_with(checked.len(), || None);
    let mut outcome_bytes_left = OUTCOMES_BYTES_MAX;
    for (number, round) in rounds(&checked).into_iter().enumerate() {
        // Whoever won an equal key before is in this same batch, and cannot settle until it is answered.
        let may_wait = number == 0;
        let (waiting, at_once): (Vec<Place>, Vec<Place>) =
            round.into_iter().partition(|(_, claim)| may_wait && !claim.wait.is_zero());
        let mut keep = |(place, mut answer): (usize, Result<view::Answered, Problem>)| {
            _ = answer.as_mut().map(|answer| answer.fit_into(&mut outcome_bytes_left));
            answers[place] = Some(answer);
        };
        // The waiting ones first: what is won at once should not spend its lease on them.
        claim_waiting(&app, waiting).await.into_iter().for_each(&mut keep);
        for some in at_once.chunks(AT_ONCE) {
            claim_at_once(&app, some).await.into_iter().for_each(&mut keep);
        }
    }
    let answers = answers.into_iter().zip(checked).map(|(answer, checked)| match (answer, checked) {
        (Some(answer), _) => answer,
        (None, Err(problem)) => Err(problem),
        (None, Ok(_)) => unreachable!("every claim is in some round"),
    });
    Ok(view::batch(answers).map(Body::new))
}

/// Equal keys go into different rounds: that the first wins must not depend on who is quicker.
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

async fn claim_at_once(app: &App, claims: &[Place<'_>]) -> Vec<(usize, Result<view::Answered, Problem>)> {
    let claimed = app.ledger.claim_all(claims.iter().map(|(_, claim)| (&claim.key, claim.terms.clone())).collect());
    let answers = claims.iter().zip(claimed.await).map(|(&(place, claim), claimed)| (place, answered(claim, claimed)));
    answers.collect()
}

async fn claim_waiting(app: &Handle, claims: Vec<Place<'_>>) -> Vec<(usize, Result<view::Answered, Problem>)> {
    join_all(claims.into_iter().map(|(place, claim)| async move { (place, decide(app, claim).await) })).await
}
