//! Work that must not be cancelled.

use crate::problem::{Kind, Problem};
use oncegate_transports::trace;

/// Runs the work on a task of its own: a client that hangs up cancels neither the work nor its audit line.
pub async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::spawn(trace::carried(work)).await;
    done.unwrap_or_else(|_| Err(Kind::Internal.because("the request ended in a panic")))
}
