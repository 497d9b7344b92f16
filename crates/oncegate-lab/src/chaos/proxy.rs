//! A network between one server and PostgreSQL, with faults on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Forward,
    /// Delays each piece of data, both ways.
    Delay(Duration),
    /// Accepts everything and passes nothing on, in either direction: half open.
    Swallow,
    /// Refuses connections, and ends the open ones.
    Down,
    /// Cuts the next connection that sends COMMIT, before the server has it, and goes `Down`.
    CutBeforeCommit,
    /// Passes the next COMMIT on, cuts its connection before the answer, and goes `Down`.
    CutAfterCommit,
}

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    mode: watch::Sender<Mode>,
    target: watch::Sender<SocketAddr>,
    /// A negative control: a COMMIT whose connection is cut is answered as done.
    lies: bool,
}

/// The pause before the connection is cut, so that the false answer arrives.
const LIE_ARRIVES: Duration = Duration::from_millis(20);
/// PostgreSQL's answer to a COMMIT: the command is complete, and the connection is idle.
const COMMITTED: &[u8] = b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I";

impl Proxy {
    pub async fn start(target: SocketAddr, lies: bool) -> Result<Proxy, std::io::Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared =
            Arc::new(Shared { mode: watch::Sender::new(Mode::Forward), target: watch::Sender::new(target), lies });
        let for_all = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, for_all.clone()));
            }
        });
        Ok(Proxy { address, shared })
    }

    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Leads to this server from now on. Cuts open connections.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.target.send_replace(target);
    }

    /// Waits until a one-time fault has happened or the limit has passed. Returns whether the fault has happened.
    pub async fn has_struck(&self, limit: Duration) -> bool {
        let mut mode = self.shared.mode.subscribe();
        tokio::time::timeout(limit, mode.wait_for(|mode| *mode == Mode::Down)).await.is_ok()
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    if *shared.mode.borrow() == Mode::Down {
        return;
    }
    let mut target = shared.target.subscribe();
    let address = *target.borrow_and_update();
    let Ok(server) = TcpStream::connect(address).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let route = Route { shared: &shared, is_silenced: watch::Sender::new(false), lie: Notify::new() };
    let mut mode = shared.mode.subscribe();
    // The first of these that ends, ends all of them and closes their sockets.
    tokio::select! {
        () = route.forward_requests(from_client, to_server) => {}
        () = route.forward_answers(from_server, to_client) => {}
        () = async { drop(mode.wait_for(|mode| *mode == Mode::Down).await) } => {
            // A COMMIT that was passed on reaches the server before its connection ends.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        _ = target.changed() => {}
    }
}

/// A client's connection to the server.
struct Route<'a> {
    shared: &'a Shared,
    /// Whether the server's answers are dropped.
    is_silenced: watch::Sender<bool>,
    /// Tells the way back to answer a COMMIT that the server never had.
    lie: Notify,
}

impl Route<'_> {
    async fn forward_requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
            let piece = &buffer[..length];
            let mode = *self.shared.mode.borrow();
            let is_commit = piece.windows(7).any(|bytes| bytes == b"COMMIT\0");
            match mode {
                Mode::Swallow | Mode::Down => continue,
                Mode::Delay(by) => tokio::time::sleep(by).await,
                Mode::CutBeforeCommit if is_commit => {
                    if self.shared.lies {
                        self.lie.notify_one();
                        tokio::time::sleep(LIE_ARRIVES).await;
                    }
                    self.shared.mode.send_replace(Mode::Down);
                    return;
                }
                Mode::CutAfterCommit if is_commit => {
                    self.is_silenced.send_replace(true);
                    let _ = to.write_all(piece).await;
                    self.shared.mode.send_replace(Mode::Down);
                    return std::future::pending().await;
                }
                _ => {}
            }
            if to.write_all(piece).await.is_err() {
                return;
            }
        }
    }

    async fn forward_answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read,
                () = self.lie.notified() => {
                    let _ = to.write_all(COMMITTED).await;
                    continue;
                }
            };
            let Ok(length @ 1..) = read else { return };
            let mode = *self.shared.mode.borrow();
            if *self.is_silenced.borrow() || matches!(mode, Mode::Swallow | Mode::Down) {
                continue;
            }
            if let Mode::Delay(by) = mode {
                tokio::time::sleep(by).await;
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    }
}
