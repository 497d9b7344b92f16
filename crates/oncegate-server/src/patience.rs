//! A connection whose client must go on reading, and must not hang up.
//!
//! A client that asks and does not read its answer would hold the answer's memory, and a place among the connections,
//! for as long as it likes. Here it has [`WRITE_TIMEOUT`] for each write to make progress.
//!
//! One that has hung up, before its request is looked at or while it is being answered, is noticed here, so that nobody works, waits or wins for it. (hyper would notice as well: by reading, for which it makes
//! room anew with each request.) Whoever closes its own half of the connection has hung up.

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
    /// Whoever reads knows that nothing more will come.
    is_read_to_the_end: bool,
    head: Arc<Head>,
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
    /// `head` hears when all is written.
    pub fn new(stream: S, head: Arc<Head>) -> Self {
        Patient { stream, waiting: None, is_read_to_the_end: false, head }
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

impl<S: AsyncRead + HangsUp + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        self.is_read_to_the_end = into.filled().len() == before;
        match !self.is_read_to_the_end && self.stream.poll_hung_up(context) {
            true => Poll::Ready(Err(hung_up())),
            false => Poll::Ready(Ok(())),
        }
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
        self.head.flushed();
        // hyper asks for this whenever it has come as far as it can, unless it waits for the client to read.
        match !self.is_read_to_the_end && self.stream.poll_hung_up(context) {
            true => Poll::Ready(Err(hung_up())),
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn hung_up() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the client has hung up")
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
    async fn a_client_that_has_hung_up_is_noticed_before_its_request_is_read_and_while_it_is_answered() {
        use tokio::io::AsyncReadExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect = async || {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"a request").await.unwrap();
            client
        };
        let accept = async || listener.accept().await.unwrap().0;
        drop(connect().await);
        let gone = accept().await;
        // It may take a moment until that is known.
        while !gone.ready(tokio::io::Interest::READABLE).await.unwrap().is_read_closed() {
            tokio::task::yield_now().await;
        }
        let error = Patient::new(gone, Arc::default()).read(&mut [0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);

        let (client, server) = (connect().await, accept().await);
        let mut server = Patient::new(server, Arc::default());
        assert_eq!(server.read(&mut [0; 64]).await.unwrap(), 9);
        server.flush().await.unwrap();
        drop(client);
        // Whoever has asked is woken.
        let noticed = std::future::poll_fn(|context| match Pin::new(&mut server).poll_flush(context) {
            Poll::Ready(Ok(())) => Poll::Pending,
            ended => ended,
        });
        assert_eq!(noticed.await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
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
