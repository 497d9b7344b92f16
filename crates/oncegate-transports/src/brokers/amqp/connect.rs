//! Connections to a broker.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_compat::{Compat, CompatExt};
use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use async_rs::{Runtime, Tokio};
use futures::io::{AsyncRead, AsyncWrite};
use lapin::tcp::AsyncTcpStream;
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::outgoing::{Stream, encrypt};
use oncegate_config::SecretUrl;

/// How long a caller waits for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes connections, one at a time.
pub struct Connector {
    url: SecretUrl,
    name: String,
    /// A connection that is being made. If a silent broker exceeds the time-out, the next call waits for the same attempt:
    /// an attempt that has begun cannot be cancelled.
    pending: Option<JoinHandle<lapin::Result<Connection>>>,
}

impl Connector {
    pub fn new(url: SecretUrl, name: String) -> Connector {
        Connector { url, name, pending: None }
    }

    pub async fn connect(&mut self) -> Result<Connection, String> {
        let begin = || {
            let (url, name) = (self.url.expose().to_owned(), self.name.as_str().into());
            let options = ConnectionProperties::default().with_connection_name(name);
            tokio::spawn(async move { open(&url, options).await })
        };
        let pending = self.pending.get_or_insert_with(begin);
        let Ok(connected) = tokio::time::timeout(CONNECT_TIMEOUT, pending).await else {
            return Err(format!("no connection to {} within {CONNECT_TIMEOUT:?}", self.url));
        };
        self.pending = None;
        match connected {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(format!("no connection to {}: {error}", self.url)),
            Err(_) => Err(format!("no connection to {}: the attempt was ended", self.url)),
        }
    }
}

async fn open(url: &str, options: ConnectionProperties) -> lapin::Result<Connection> {
    let url = url.parse().map_err(|error: String| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let connect = async |url: AMQPUri, _| Ok(AsyncTcpStream::Plain(stream(&url).await?.compat()));
    Connection::connector(url, Runtime::new(Kit(Tokio::current())), connect, options).await
}

/// The connection to the broker, encrypted if the URL is `amqps`.
async fn stream(url: &AMQPUri) -> io::Result<Box<dyn Stream>> {
    let AMQPAuthority { host, port, .. } = &url.authority;
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), *port)).await?;
    stream.set_nodelay(true)?;
    match url.scheme {
        AMQPScheme::AMQP => Ok(Box::new(stream)),
        AMQPScheme::AMQPS => encrypt(host, stream).await,
    }
}

/// Tokio, with our own TLS: the client's brings a hundred crates for key files that we do not use.
#[derive(Clone, Debug)]
struct Kit(Tokio);

impl RuntimeKit for Kit {}

impl Executor for Kit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, run: F) -> T {
        self.0.block_on(run)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(&self, run: F) -> Task<Self::Task<T>> {
        self.0.spawn(run)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(&self, run: F) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(run)
    }
}

impl Reactor for Kit {
    type TcpStream = Compat<Box<dyn Stream>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// The client does not call this.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Self::TcpStream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, span: Duration) -> Self::Sleep {
        self.0.sleep(span)
    }

    fn interval(&self, span: Duration) -> impl futures::Stream<Item = Instant> + Send + 'static {
        self.0.interval(span)
    }

    #[expect(clippy::manual_async_fn, reason = "the future must not borrow the kit")]
    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        async move {
            let stream: Box<dyn Stream> = Box::new(TcpStream::connect(address).await?);
            Ok(stream.compat())
        }
    }
}
