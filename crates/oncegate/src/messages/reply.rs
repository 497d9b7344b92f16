//! The answers to a post, and how an answer is kept for replays.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::record::{Lead, Message, Status};
use crate::document::Kept;

/// The form in which callers get their answers, and in which an answer is kept under its Idempotency-Key. The library's own is
/// [`Posted`]; the server's is an HTTP answer.
pub trait Reply: Clone + Send + Sync + 'static {
    /// The answer to the request that created the message.
    fn to_first(message: &Kept<Message>, lead: &Kept<Lead>) -> Self;

    /// The answer to a later request with the same message.
    fn to_duplicate(message: &Kept<Message>, lead: &Kept<Lead>, age_seconds: u64) -> Self;

    /// The answer to a duplicate whose original is not written yet.
    fn to_pending_duplicate() -> Self;

    /// The answer for a replay whose body was not kept. It is rebuilt from the present message in the form of `like`, the first answer.
    fn told_again(message: &Kept<Message>, lead: &Kept<Lead>, like: Option<&Self>) -> Self;

    /// The bytes to keep. Without the body, a replay rebuilds the answer from the message.
    fn keep(&self, with_body: bool) -> Bytes;

    /// Reads the bytes that were kept; `None` if they are no answer.
    fn read(kept: &Bytes) -> Option<Self>;

    /// The message to rebuild the answer from, if the body was left out.
    fn to_be_told_from(&self) -> Option<Uuid>;
}

/// An answer, and whether it was given before.
#[derive(Clone, Debug)]
pub struct Answered<R> {
    /// The answer.
    pub reply: R,
    /// The same request, with the same Idempotency-Key, got this answer before.
    pub is_replay: bool,
}

impl<R> Answered<R> {
    pub(super) fn now(reply: R) -> Answered<R> {
        Answered { reply, is_replay: false }
    }
}

/// What became of a post.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// The message; `None` for a duplicate whose original is not written yet.
    pub message: Option<Uuid>,
    /// The status of the message, if there is a message.
    pub status: Option<Status>,
    /// The same message was posted before, and was not sent again.
    pub is_duplicate: bool,
}

impl Posted {
    fn of(message: &Kept<Message>, is_duplicate: bool) -> Posted {
        Posted { message: Some(message.id), status: Some(message.document.status), is_duplicate }
    }
}

impl Reply for Posted {
    fn to_first(message: &Kept<Message>, _lead: &Kept<Lead>) -> Posted {
        Posted::of(message, false)
    }

    fn to_duplicate(message: &Kept<Message>, _lead: &Kept<Lead>, _age_seconds: u64) -> Posted {
        Posted::of(message, true)
    }

    fn to_pending_duplicate() -> Posted {
        Posted { message: None, status: None, is_duplicate: true }
    }

    fn told_again(message: &Kept<Message>, _lead: &Kept<Lead>, like: Option<&Posted>) -> Posted {
        Posted::of(message, like.is_some_and(|like| like.is_duplicate))
    }

    fn keep(&self, with_body: bool) -> Bytes {
        let kept = Posted { status: self.status.filter(|_| with_body), ..self.clone() };
        crate::document::bytes(&kept)
    }

    fn read(kept: &Bytes) -> Option<Posted> {
        serde_json::from_slice(kept).ok()
    }

    fn to_be_told_from(&self) -> Option<Uuid> {
        self.message.filter(|_| self.status.is_none())
    }
}
