//! The stream of a client that may be slow, stop reading, or close its side.
//!
//! A client that sends requests but does not read the answers would hold the answers' memory, and a connection, without limit. While a
//! write
//! waits, the client has to read [`READ_MIN_BYTES`] in each [`READ_WINDOW`], or the connection is cut.
//!
//! This module notices when a client closes its side while its request is being answered, and notifies [`Client`]. (hyper would notice as
//! well, but by a read that allocates a new buffer for each request.) The close is no error: a completely received request is handled, and
//! a
//! client that has only closed its own half gets its answer. A write to a client that is gone fails, and ends the connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use super::Connection;

/// While a write waits, the client has to read [`READ_MIN_BYTES`] in each window of this length.
const READ_WINDOW: Duration = Duration::from_secs(30);
/// About 9 KB a second. (The system's send buffer takes more at once than it has sent, so a short window would not reveal a slow client.)
const READ_MIN_BYTES: usize = 256 * 1024;
/// An answer up to this size, whose head and body are separate buffers, is copied into one: the system writes that faster.
const SMALL_ANSWER_BYTES: usize = 2 * 1024;
/// The limit of bytes that are read from a TLS client that sends its next request before it has its answer.
const AHEAD_BYTES_MAX: usize = 1024;

pub struct ClientStream<S> {
    stream: S,
    /// The bytes that were read to find out whether the client has closed its side.
    ahead: BytesMut,
    slow: Option<Slow>,
    connection: Arc<Connection>,
}

/// A write has waited for the client, and the buffered data is not completely written since.
struct Slow {
    window: Pin<Box<Sleep>>,
    written: usize,
}

/// A stream that can report whether the other side has closed.
pub trait Closes {
    /// If the other side is open, the task is woken when it should ask again. Bytes that had to be read for this are added to `ahead`.
    fn poll_closed(&mut self, context: &mut Context<'_>, ahead: &mut BytesMut) -> bool;
}

impl Closes for TcpStream {
    fn poll_closed(&mut self, context: &mut Context<'_>, _: &mut BytesMut) -> bool {
        // Readable bytes belong to another request.
        matches!(self.poll_peek(context, &mut ReadBuf::new(&mut [0])), Poll::Ready(Ok(0) | Err(_)))
    }
}

/// The end of a TLS stream is encrypted like its requests: only a read tells them apart.
impl Closes for TlsStream<TcpStream> {
    fn poll_closed(&mut self, context: &mut Context<'_>, ahead: &mut BytesMut) -> bool {
        if !ahead.is_empty() {
            return false;
        }
        let mut bytes = [0; AHEAD_BYTES_MAX];
        let mut into = ReadBuf::new(&mut bytes);
        match Pin::new(self).poll_read(context, &mut into) {
            Poll::Pending => false,
            Poll::Ready(Ok(())) if !into.filled().is_empty() => {
                ahead.extend_from_slice(into.filled());
                // hyper may wait for these bytes.
                context.waker().wake_by_ref();
                false
            }
            Poll::Ready(_) => true,
        }
    }
}

impl<S> ClientStream<S> {
    /// `connection` is notified when the client has closed its side.
    pub fn new(stream: S, connection: Arc<Connection>) -> Self {
        ClientStream { stream, ahead: BytesMut::new(), slow: None, connection }
    }

    /// Checks the result of a write, and limits how long a waiting write may wait.
    fn read_in_time(&mut self, context: &mut Context<'_>, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = wrote {
            _ = self.slow.as_mut().map(|slow| slow.written += bytes);
        }
        self.in_time(context, wrote)
    }

    /// Limits how long an operation that waits for the client may wait.
    fn in_time<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            return done;
        }
        let slow = self.slow.get_or_insert_with(|| Slow { window: Box::pin(sleep(READ_WINDOW)), written: 0 });
        while slow.window.as_mut().poll(context).is_ready() {
            if slow.written < READ_MIN_BYTES {
                let why = "the client reads its answer too slowly, or not at all";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            slow.written = 0;
            slow.window.as_mut().reset(Instant::now() + READ_WINDOW);
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, into);
        }
        let fits = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead.split_to(fits));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Closes + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.read_in_time(context, wrote)
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
        self.read_in_time(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS buffers bytes that it has not written yet.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        ready!(self.in_time(context, flushed))?;
        self.slow = None;
        // hyper calls this whenever it cannot progress further, unless it waits for the client to read.
        let ClientStream { stream, ahead, connection, .. } = &mut *self;
        if !connection.client.has_left() && stream.poll_closed(context, ahead) {
            connection.client.leaves();
            // The same task makes the answer, and has polled it before this.
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    impl Closes for DuplexStream {
        fn poll_closed(&mut self, _: &mut Context<'_>, _: &mut BytesMut) -> bool {
            false
        }
    }

    /// A stream that buffers writes, and writes them on flush, as TLS does.
    struct Takes {
        stream: DuplexStream,
        taken: BytesMut,
    }

    impl Closes for Takes {
        fn poll_closed(&mut self, _: &mut Context<'_>, _: &mut BytesMut) -> bool {
            false
        }
    }

    impl AsyncWrite for Takes {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.taken.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            let Takes { stream, taken } = &mut *self;
            while !taken.is_empty() {
                let wrote = ready!(Pin::new(&mut *stream).poll_write(context, taken))?;
                drop(taken.split_to(wrote));
            }
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_flush(context)
        }
    }

    #[tokio::test]
    async fn a_request_of_a_client_that_has_left_is_read_and_whoever_waits_is_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for resets in [false, true] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"a request").await.unwrap();
            let mut server = ClientStream::new(listener.accept().await.unwrap().0, Arc::default());
            let connection = server.connection.clone();
            server.flush().await.unwrap();
            assert!(!connection.client.has_left(), "there is something to read");
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
                () = connection.client.left() => {}
                () = flushes => {}
            }
        }
    }

    #[tokio::test]
    async fn an_answer_of_two_pieces_arrives_whole_whatever_fits_at_once() {
        for length in [5, SMALL_ANSWER_BYTES - 4, SMALL_ANSWER_BYTES, 3 * SMALL_ANSWER_BYTES] {
            let (mut client, server) = tokio::io::duplex(1000);
            let mut server = ClientStream::new(server, Arc::default());
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
            let (_, ()) = tokio::join!(client.read_to_end(&mut read), writes);
            assert_eq!(read, answer);
        }
    }

    /// Writes an answer to a client that reads so many bytes a second.
    async fn write_to_one_that_reads(bytes_a_second: usize, answer: usize) -> io::Result<()> {
        let (mut client, server) = tokio::io::duplex(1024);
        let mut server = ClientStream::new(server, Arc::default());
        let reads = async {
            let mut piece = vec![0; bytes_a_second];
            loop {
                sleep(Duration::from_secs(1)).await;
                if client.read_exact(&mut piece).await.is_err() {
                    return;
                }
            }
        };
        let answer = vec![1; answer];
        let writes = async {
            server.write_all(&answer).await?;
            server.flush().await
        };
        tokio::select! {
            wrote = writes => wrote,
            () = reads => unreachable!("the server is there as long as it writes"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_cut_off_and_one_that_reads_slowly_is_not() {
        let (_client, server) = tokio::io::duplex(10);
        let mut server = ClientStream::new(server, Arc::default());
        server.write_all(&[1; 10]).await.unwrap();
        let cut_off = server.write_all(&[2; 10]).await.unwrap_err();
        assert_eq!(cut_off.kind(), io::ErrorKind::TimedOut);

        let enough = 2 * READ_MIN_BYTES / READ_WINDOW.as_secs() as usize;
        write_to_one_that_reads(enough, 10 * READ_MIN_BYTES).await.unwrap();
        // A client that reads now and then was never cut, as long as each write made progress.
        let begun = Instant::now();
        let cut_off = write_to_one_that_reads(enough / 4, 10 * READ_MIN_BYTES).await.unwrap_err();
        assert_eq!(cut_off.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), READ_WINDOW.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_what_tls_has_taken_is_cut_off() {
        for shuts in [false, true] {
            let (_client, stream) = tokio::io::duplex(10);
            let mut server = ClientStream::new(Takes { stream, taken: BytesMut::new() }, Arc::default());
            server.write_all(&[1; 20]).await.unwrap();
            let begun = Instant::now();
            let cut_off = if shuts { server.shutdown().await } else { server.flush().await }.unwrap_err();
            assert_eq!((cut_off.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, READ_WINDOW));
        }
    }
}
