//! Sends under a send of the log: begins it, calls the provider, renews the lease meanwhile, and reports the result.

use std::fmt::Display;
use std::time::Duration;

use oncegate_core::WorkspaceName;
use oncegate_core::job::Reached;
use oncegate_store::StoreError;
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::{Begin, Begun, NotTaken, Proceed, Sends, Sent};
use crate::run::Failure;

/// A lease is renewed when this part of it has passed.
const RENEWED_AFTER: f64 = 0.4;
/// The pause between two attempts to write the result.
const WRITE_PAUSE: Duration = Duration::from_millis(100);

/// A send that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The recorded result.
    pub sent: Sent,
    /// An earlier call has sent it, and this call did not.
    pub is_duplicate: bool,
}

/// Why [`Sends::send`] has not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError<E> {
    /// The provider surely did not take it. Once that is recorded, a later call sends it.
    #[error("it was not sent: {0}")]
    NotDone(E),
    /// The provider may have taken it. [`Options::lost`](super::Options::lost) decides whether it is sent again.
    #[error("it may have been sent: {0}")]
    MayHaveHappened(E),
    /// An earlier call may have sent it, and it must not be sent again.
    #[error("whether send {id} was sent is unknown: a person has to resolve it")]
    Unknown {
        /// The id of the send.
        id: Uuid,
    },
    /// Another worker is sending it.
    #[error("another worker is sending it; its lease ends in {lease_left:?}")]
    Busy {
        /// The rest of that worker's lease.
        lease_left: Duration,
    },
    /// The lease was lost before the provider answered: another worker may be sending it. The call of the provider was dropped, and may
    /// have been taken.
    #[error("the lease was lost before the provider answered")]
    LeaseLost,
    /// The provider took it, but that could not be recorded.
    #[error("it was sent, and that could not be recorded: {error}")]
    NotRecorded {
        /// The provider's id of the message.
        esp_message_id: Option<String>,
        /// Why it could not be recorded.
        error: NotTaken,
    },
    /// The store returned an error before the provider was called.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Sends {
    /// Sends, unless an earlier call has: calls `provider` and records its answer. The lease is renewed while the provider is called.
    ///
    /// `provider` gets the [`Proceed`], with the idempotency key for the provider, and returns the provider's id of the message.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use oncegate::sends::{Begin, Options};
    /// use oncegate::{Failure, Gate};
    ///
    /// let sends = Gate::open("memory:").await?.sends(Options::default());
    /// let begin = Begin::new("spring", "ada@example.com")?;
    /// for is_duplicate in [false, true] {
    ///     let delivery = sends.send(&begin, |ours| async move {
    ///         // Here the provider is called, with ours.provider_key.
    ///         Ok::<_, Failure<std::io::Error>>(Some(format!("esp-{}", ours.attempt)))
    ///     });
    ///     let delivery = delivery.await?;
    ///     assert_eq!(delivery.sent.esp_message_id.as_deref(), Some("esp-1"));
    ///     assert_eq!(delivery.is_duplicate, is_duplicate);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send<E: Display, Fut>(
        &self,
        workspace: &WorkspaceName,
        begin: &Begin,
        provider: impl FnOnce(Proceed) -> Fut,
    ) -> Result<Delivery, SendError<E>>
    where
        Fut: Future<Output = Result<Option<String>, Failure<E>>>,
    {
        let begun_at = Instant::now();
        let ours = match self.begin(workspace, begin).await? {
            Begun::Proceed(ours) => ours,
            Begun::Sent(sent) => return Ok(Delivery { sent, is_duplicate: true }),
            Begun::Unknown { id } => return Err(SendError::Unknown { id }),
            Begun::Busy { lease_left } => return Err(SendError::Busy { lease_left }),
        };
        let lease = begin.lease_by(self.options());
        let called = tokio::select! {
            // The lease is checked first: a process that was paused past it must not go on.
            biased;
            () = self.keep_renewing(workspace, &ours, lease, begun_at) => return Err(SendError::LeaseLost),
            called = provider(ours.clone()) => called,
        };
        let reported = self.report(workspace, &ours, lease, &called).await;
        match called {
            Err(Failure::NotDone(error)) => Err(SendError::NotDone(error)),
            Err(Failure::Unknown(error)) => Err(SendError::MayHaveHappened(error)),
            Ok(esp_message_id) => match reported {
                Ok(sent_us) => {
                    Ok(Delivery { sent: Sent { id: ours.id, esp_message_id, sent_us }, is_duplicate: false })
                }
                Err(error) => Err(SendError::NotRecorded { esp_message_id, error }),
            },
        }
    }

    /// Returns when the lease is lost, or when it has ended because the store did not answer.
    async fn keep_renewing(&self, workspace: &WorkspaceName, ours: &Proceed, lease: Duration, begun_at: Instant) {
        let mut ends_at = begun_at + lease;
        loop {
            sleep(lease.mul_f64(RENEWED_AFTER)).await;
            loop {
                let asked_at = Instant::now();
                if asked_at >= ends_at {
                    return;
                }
                match timeout_at(ends_at, self.renew(workspace, ours.id, ours.token, Some(lease))).await {
                    Ok(Ok(_)) => {
                        ends_at = asked_at + lease;
                        break;
                    }
                    Ok(Err(NotTaken::Store(_))) => sleep(WRITE_PAUSE).await,
                    Ok(Err(_)) | Err(_) => return,
                }
            }
        }
    }

    /// Records the provider's answer, with retries for one lease. Returns when it was sent.
    async fn report<E: Display>(
        &self,
        workspace: &WorkspaceName,
        ours: &Proceed,
        lease: Duration,
        called: &Result<Option<String>, Failure<E>>,
    ) -> Result<i64, NotTaken> {
        let give_up_at = Instant::now() + lease;
        loop {
            let written = match called {
                Ok(esp_message_id) => self.sent(workspace, ours.id, ours.token, esp_message_id.clone()).await,
                Err(Failure::NotDone(error)) => {
                    self.failed(workspace, ours.id, ours.token, plain(error), Reached::No).await
                }
                Err(Failure::Unknown(error)) => {
                    self.failed(workspace, ours.id, ours.token, plain(error), Reached::Maybe).await
                }
            };
            match written {
                Err(NotTaken::Store(StoreError::Refused(why))) => {
                    return Err(NotTaken::Store(StoreError::Refused(why)));
                }
                Err(NotTaken::Store(_)) if Instant::now() < give_up_at => sleep(WRITE_PAUSE).await,
                written => return written.map(|kept| kept.document.sent_us.unwrap_or_default()),
            }
        }
    }
}

/// The longest error text that is stored, in characters.
const ERROR_CHARS_MAX: usize = 1_000;

/// The text of an error, without control characters, and not too long.
fn plain(error: &impl Display) -> String {
    error.to_string().replace(char::is_control, " ").chars().take(ERROR_CHARS_MAX).collect()
}
