//! A connection whose client must go on reading, and must not hang up.
//!
//! A client that asks and does not read its answer would hold the answer's memory, and a place among the connections,
//! for as long as it likes. Here it has [`WRITE_TIMEOUT`] for each write to make progress.
//!
//! One that has hung up while it is being answered is noticed here, so that nobody works, waits or wins for it. (hyper would notice as well: by reading, for which it makes
//! room anew with each request.)

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// An answer up to this, which has its head and its body in two places, is put into one: the system writes that faster.
const SMALL_ANSWER_BYTES: usize = 2 * 1024;

pub struct Patient<S> {
    stream: S,
    /// Runs while a write waits for the client.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Whoever reads knows that nothing more will come.
    is_read_to_the_end: bool,
}

/// What can tell whether the other side has hung up, without reading anything.
pub trait HangsUp {
    /// If not, whoever asks is woken when there is reason to ask again.
    fn poll_hung_up(&self, context: &mut Context<'_>) -> bool;
}

impl HangsUp for TcpStream {
    fn poll_hung_up(&self, context: &mut Context<'_>) -> bool {
        // If there is something to read, it is another request.
        matches!(self.poll_peek(context, &mut ReadBuf::new(&mut [0])), Poll::Ready(Ok(0) | Err(_)))
    }
}

impl<S> Patient<S> {
    pub fn new(stream: S) -> Self {
        Patient { stream, waiting: None, is_read_to_the_end: false }
    }

    /// What became of a write, and for how long it may wait on.
    fn within_patience<T>(&mut self, context: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.waiting = None;
            return wrote;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        self.is_read_to_the_end = into.filled().len() == before;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + HangsUp + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within_patience(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().map(|slice| slice.len()).sum::<usize>() <= SMALL_ANSWER_BYTES {
            let mut whole = SmallVec::<[u8; SMALL_ANSWER_BYTES]>::new();
            slices.iter().for_each(|slice| whole.extend_from_slice(slice));
            return self.poll_write(context, &whole);
        }
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.within_patience(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        ready!(self.within_patience(context, flushed))?;
        // All that is to be said has been. This is asked whenever the connection has come as far as it can.
        match !self.is_read_to_the_end && self.stream.poll_hung_up(context) {
            true => Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client has hung up"))),
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream};

    use super::*;

    impl HangsUp for DuplexStream {
        fn poll_hung_up(&self, _: &mut Context<'_>) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn an_answer_of_two_pieces_arrives_whole_whatever_fits_at_once() {
        for length in [5, SMALL_ANSWER_BYTES - 4, SMALL_ANSWER_BYTES, 3 * SMALL_ANSWER_BYTES] {
            let (mut client, server) = tokio::io::duplex(1000);
            let mut server = Patient::new(server);
            let (head, body) = (b"head".to_vec(), vec![b'x'; length]);
            let answer = [head.clone(), body.clone()].concat();
            let writes = async move {
                let (mut first, mut second) = (&head[..], &body[..]);
                while !(first.is_empty() && second.is_empty()) {
                    let slices = [io::IoSlice::new(first), io::IoSlice::new(second)];
                    let wrote = server.write_vectored(&slices).await.unwrap();
                    assert!((1..=1000).contains(&wrote));
                    (first, second) = (&first[wrote.min(first.len())..], &second[wrote.saturating_sub(first.len())..]);
                }
            };
            let mut read = vec![];
            let (_, ()) = tokio::join!(tokio::io::AsyncReadExt::read_to_end(&mut client, &mut read), writes);
            assert_eq!(read, answer);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_cut_off_and_one_that_reads_slowly_is_not() {
        let (client, server) = tokio::io::duplex(10);
        let mut server = Patient::new(server);
        server.write_all(&[1; 10]).await.unwrap();
        let cut_off = server.write_all(&[2; 10]).await.unwrap_err();
        assert_eq!(cut_off.kind(), io::ErrorKind::TimedOut);

        let (mut slow, server) = tokio::io::duplex(10);
        let mut server = Patient::new(server);
        let reads = async {
            let mut byte = [0; 5];
            for _ in 0..10 {
                sleep(WRITE_TIMEOUT - Duration::from_secs(1)).await;
                tokio::io::AsyncReadExt::read_exact(&mut slow, &mut byte).await.unwrap();
            }
        };
        let (wrote, ()) = tokio::join!(server.write_all(&[3; 50]), reads);
        wrote.unwrap();
        drop(client);
    }
}
