//! A connection whose client must go on reading, and may close its side.
//!
//! A client that asks and does not read its answer would hold the answer's memory, and a place among the connections,
//! for as long as it likes. Here it has [`WRITE_TIMEOUT`] for each write to make progress.
//!
//! A client that closes its side while its request is being answered is noticed here, and [`Client`](crate::connection::Client) is told.
//! (hyper would notice as well: by reading, for which it makes room anew with each request.) That is no error: what was received
//! whole is done, and a client that has only closed its own half is answered. One that is gone is noticed when it is written to.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::connection::Head;

pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// An answer up to this, which has its head and its body in two places, is put into one: the system writes that faster.
const SMALL_ANSWER_BYTES: usize = 2 * 1024;

pub struct Patient<S> {
    stream: S,
    /// Runs while a write waits for the client.
    waiting: Option<Pin<Box<Sleep>>>,
    head: Arc<Head>,
}

/// A stream that can tell, without reading anything, whether the other side has closed.
pub trait Closes {
    /// If it has not, the caller is woken when there is reason to ask again.
    fn poll_closed(&self, context: &mut Context<'_>) -> bool;
}

impl Closes for TcpStream {
    fn poll_closed(&self, context: &mut Context<'_>) -> bool {
        // If there is something to read, it is another request.
        matches!(self.poll_peek(context, &mut ReadBuf::new(&mut [0])), Poll::Ready(Ok(0) | Err(_)))
    }
}

impl<S> Patient<S> {
    /// `head` hears when all is written.
    pub fn new(stream: S, head: Arc<Head>) -> Self {
        Patient { stream, waiting: None, head }
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
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Closes + Unpin> AsyncWrite for Patient<S> {
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
        self.head.flushed();
        // hyper asks for this whenever it has come as far as it can, unless it waits for the client to read.
        if !self.head.client.has_left() && self.stream.poll_closed(context) {
            self.head.client.leaves();
            // The answer is made by this task, and has been polled before this.
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream};

    use super::*;

    impl Closes for DuplexStream {
        fn poll_closed(&self, _: &mut Context<'_>) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_request_of_a_client_that_has_left_is_read_and_whoever_waits_is_told() {
        use tokio::io::AsyncReadExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for resets in [false, true] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"a request").await.unwrap();
            let mut server = Patient::new(listener.accept().await.unwrap().0, Arc::default());
            let head = server.head.clone();
            server.flush().await.unwrap();
            assert!(!head.client.has_left(), "there is something to read");
            if resets {
                client.set_zero_linger().unwrap();
            }
            drop(client);
            assert_eq!(server.read(&mut [0; 64]).await.unwrap(), 9);
            let flushes = std::future::poll_fn(|context| match Pin::new(&mut server).poll_flush(context) {
                Poll::Ready(Ok(())) => Poll::<()>::Pending,
                failed => panic!("{failed:?}"),
            });
            tokio::select! {
                () = head.client.left() => {}
                () = flushes => {}
            }
        }
    }

    #[tokio::test]
    async fn an_answer_of_two_pieces_arrives_whole_whatever_fits_at_once() {
        for length in [5, SMALL_ANSWER_BYTES - 4, SMALL_ANSWER_BYTES, 3 * SMALL_ANSWER_BYTES] {
            let (mut client, server) = tokio::io::duplex(1000);
            let mut server = Patient::new(server, Arc::default());
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
        let mut server = Patient::new(server, Arc::default());
        server.write_all(&[1; 10]).await.unwrap();
        let cut_off = server.write_all(&[2; 10]).await.unwrap_err();
        assert_eq!(cut_off.kind(), io::ErrorKind::TimedOut);

        let (mut slow, server) = tokio::io::duplex(10);
        let mut server = Patient::new(server, Arc::default());
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
