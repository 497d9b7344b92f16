//! What has to be done to its end.

use crate::problem::{Kind, Problem};
use crate::trace;

/// On a task of its own: a client that hangs up does not stop it, nor take the audit line with it.
pub async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::spawn(trace::carried(work)).await;
    done.unwrap_or_else(|_| Err(Kind::Internal.because("the request ended in a panic")))
}
