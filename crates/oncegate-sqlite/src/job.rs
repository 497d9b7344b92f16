//! The jobs of the writer.

use oncegate_core::Moment;
use oncegate_store::{Commit, Committed, DuplicateCount, StoreError, Swept};
use rusqlite::Connection;
use tokio::sync::oneshot;

pub enum Job {
    /// The hot path, therefore not boxed.
    Commit(Commit, oneshot::Sender<Result<Committed, StoreError>>),
    /// Many commits, handed over together.
    All(Vec<Commit>, oneshot::Sender<Vec<Result<Committed, StoreError>>>),
    Sweep(usize, oneshot::Sender<Result<Swept, StoreError>>),
    Count(Vec<DuplicateCount>, oneshot::Sender<Result<(), StoreError>>),
    Other(Box<dyn Work>),
    Stop(oneshot::Sender<()>),
}

/// Any other write, except to claims and records. It runs within the group, perhaps more than once, and is answered after the
/// group's commit.
pub trait Work: Send {
    fn run(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, result: Result<(), StoreError>);
}

pub struct Task<T, F> {
    pub work: F,
    pub value: Option<T>,
    pub answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Work for Task<T, F>
where
    T: Send,
    F: FnMut(&Connection, Moment) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()> {
        self.value = Some((self.work)(connection, moment)?);
        Ok(())
    }

    fn answer(self: Box<Self>, result: Result<(), StoreError>) {
        let value = self.value;
        // A caller that has gone away needs no answer; its write is kept.
        let _ = self.answer.send(result.map(|()| value.expect("it ran")));
    }
}
