//! A network between a store and its server, with faults on demand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf};
use tokio::sync::watch;
use tokio_postgres::config::Host;

use super::server_url;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Forward,
    /// Accepts everything and passes nothing on, in either direction.
    Swallow,
    /// Closes every new connection at once; open connections go on.
    Refuse,
    /// Passes everything on, but delays each piece by this time.
    Delay(Duration),
    /// Holds the server's answers until the mode changes.
    HoldAnswers,
    /// Holds each COMMIT until the mode changes.
    HoldCommits,
    /// Cuts the next connection that sends COMMIT, before the server has it.
    CutBeforeCommit,
    /// Cuts the next connection that sends COMMIT, after the server has executed it.
    CutAfterCommit,
    /// Accepts the next COMMIT and from then on passes nothing of that connection on, not even its end.
    SwallowCommit,
}

pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    mode: watch::Sender<Mode>,
    /// The address that new connections lead to.
    target: Mutex<String>,
    /// Changes when all connections have to end.
    cut: watch::Sender<u32>,
    /// The mode after a one-time fault has happened.
    after: Mutex<Mode>,
    /// How many pieces from clients were passed on.
    requests: AtomicUsize,
    /// How many connections have a COMMIT that is held.
    held: watch::Sender<usize>,
}

impl Proxy {
    /// A proxy in front of the server that all tests share.
    pub async fn start() -> Proxy {
        Proxy::to(&server_url()).await
    }

    /// A proxy in front of the server of this URL.
    pub async fn to(url: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("is bound").port();
        let shared = Arc::new(Shared {
            mode: watch::Sender::new(Mode::Forward),
            target: Mutex::new(url.to_owned()),
            cut: watch::Sender::new(0),
            after: Mutex::new(Mode::Forward),
            requests: AtomicUsize::new(0),
            held: watch::Sender::new(0),
        });
        let for_all = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, for_all.clone()));
            }
        });
        Proxy { port, shared }
    }

    pub fn set(&self, mode: Mode) {
        self.set_then(mode, Mode::Forward);
    }

    /// Sets a one-time fault, and the mode that follows it at once.
    pub fn set_then(&self, mode: Mode, after: Mode) {
        *self.shared.after.lock().expect("is not poisoned") = after;
        self.shared.mode.send_replace(mode);
    }

    /// Leads to another server from now on, and ends all connections.
    pub fn move_to(&self, url: &str) {
        self.redirect(url);
        self.cut();
    }

    /// Leads new connections to another server; open connections go on.
    pub fn redirect(&self, url: &str) {
        *self.shared.target.lock().expect("is not poisoned") = url.to_owned();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Waits until a one-time fault has happened.
    pub async fn has_struck(&self) {
        let mut mode = self.shared.mode.subscribe();
        let after = *self.shared.after.lock().expect("is not poisoned");
        mode.wait_for(|mode| *mode == after).await.expect("the proxy lives");
    }

    /// Waits until a COMMIT is held.
    pub async fn holds_a_commit(&self) {
        self.shared.held.subscribe().wait_for(|held| *held > 0).await.expect("the proxy lives");
    }

    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// The server's URL through this proxy.
    pub fn url(&self, application: &str) -> String {
        let config: tokio_postgres::Config = server_url().parse().expect("a URL");
        let user = config.get_user().unwrap_or("postgres");
        let password = config.get_password().map(|password| format!(":{}", String::from_utf8_lossy(password)));
        let database = config.get_dbname().unwrap_or(user);
        let password = password.unwrap_or_default();
        format!("postgres://{user}{password}@127.0.0.1:{}/{database}?application_name={application}", self.port)
    }
}

impl Shared {
    fn struck(&self) {
        self.mode.send_replace(*self.after.lock().expect("is not poisoned"));
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    if *shared.mode.borrow() == Mode::Refuse {
        return;
    }
    let mut cut = shared.cut.subscribe();
    let target = shared.target.lock().expect("is not poisoned").clone();
    let config: tokio_postgres::Config = target.parse().expect("a URL");
    let Some(Host::Tcp(host)) = config.get_hosts().first() else {
        panic!("the proxy needs a server on TCP");
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let Ok(server) = TcpStream::connect((host.as_str(), port)).await else {
        return;
    };
    client.set_nodelay(true).expect("a TCP socket");
    server.set_nodelay(true).expect("a TCP socket");
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let route = Route { shared: &shared, silenced: watch::Sender::new(Silence::No) };
    // The first of these that ends, ends both and closes their sockets.
    tokio::select! {
        () = route.forward_requests(from_client, to_server) => {}
        () = route.forward_answers(from_server, to_client) => {}
        _ = cut.changed() => {}
    }
}

/// What happens to the answers on this connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Silence {
    No,
    CutAtNextAnswer,
    ForGood,
}

/// A client's connection to the server.
struct Route<'a> {
    shared: &'a Shared,
    silenced: watch::Sender<Silence>,
}

impl Route<'_> {
    async fn forward_requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut buffer).await;
            if *self.silenced.borrow() == Silence::ForGood {
                // The server does not even learn that its client has gone.
                return std::future::pending().await;
            }
            let Ok(length @ 1..) = read else { return };
            let piece = &buffer[..length];
            let mode = *self.shared.mode.borrow();
            let is_commit = piece.windows(7).any(|bytes| bytes == b"COMMIT\0");
            match mode {
                Mode::Swallow => continue,
                Mode::Delay(delay) => tokio::time::sleep(delay).await,
                Mode::HoldCommits if is_commit => {
                    self.shared.held.send_modify(|held| *held += 1);
                    let mut mode = self.shared.mode.subscribe();
                    mode.wait_for(|mode| *mode != Mode::HoldCommits).await.expect("the proxy lives");
                    self.shared.held.send_modify(|held| *held -= 1);
                }
                Mode::CutBeforeCommit if is_commit => {
                    self.shared.struck();
                    return;
                }
                Mode::CutAfterCommit if is_commit => {
                    self.silenced.send_replace(Silence::CutAtNextAnswer);
                    self.shared.struck();
                }
                Mode::SwallowCommit if is_commit => {
                    self.silenced.send_replace(Silence::ForGood);
                    self.shared.struck();
                    continue;
                }
                _ => {}
            }
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
            if to.write_all(piece).await.is_err() {
                return;
            }
        }
    }

    async fn forward_answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
            match *self.silenced.borrow() {
                Silence::No => {}
                Silence::CutAtNextAnswer => return,
                Silence::ForGood => continue,
            }
            let mut mode = self.shared.mode.subscribe();
            let mode = *mode.wait_for(|mode| *mode != Mode::HoldAnswers).await.expect("the proxy lives");
            match mode {
                Mode::Swallow => continue,
                Mode::Delay(delay) => tokio::time::sleep(delay).await,
                _ => {}
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    }
}
