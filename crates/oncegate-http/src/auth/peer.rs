//! The peer of a connection: which user of this machine owns it, where the operating system reports that.
//!
//! Linux reports the owner of a socket by its two addresses (`NETLINK_SOCK_DIAG`). The peer of a loopback connection is the socket whose
//! local
//! address is the peer's, and whose remote address is ours. One query takes some microseconds. To read the list of all sockets
//! (`/proc/net/tcp`) takes milliseconds where there are many.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use rustix::process::geteuid;
use tokio::net::TcpStream;

#[derive(Debug, Default)]
pub struct Peer {
    /// The peer's address, and ours. None: the connection is already closed.
    ends: Option<(SocketAddr, SocketAddr)>,
    /// Whether the owner is trusted. The first request that needs it looks it up, once.
    is_trusted: OnceLock<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    User(u32),
    /// No process has the other end any more. Its user is unknown: a proxy may have closed it after its client had left.
    Gone,
    /// The system does not report the owner.
    NotTold,
}

impl Peer {
    pub fn of(stream: &TcpStream) -> Peer {
        Peer { ends: stream.peer_addr().ok().zip(stream.local_addr().ok()), is_trusted: OnceLock::new() }
    }

    #[cfg(test)]
    pub fn of_our_own() -> Peer {
        Peer { ends: None, is_trusted: OnceLock::from(true) }
    }

    pub fn ip(&self) -> Option<IpAddr> {
        self.ends.map(|(peer, _)| peer.ip().to_canonical())
    }

    /// Whether the peer is a process of the server's own user. Root is not trusted either, because a proxy may run as root.
    pub fn is_trusted(&self) -> bool {
        let look = || self.ends.map_or(Owner::Gone, |(peer, ours)| look_up(peer, ours)).is_trusted();
        *self.is_trusted.get_or_init(look)
    }
}

impl Owner {
    fn is_trusted(self) -> bool {
        match self {
            Owner::User(user) => user == geteuid().as_raw(),
            Owner::Gone => false,
            Owner::NotTold => true,
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn look_up(_: SocketAddr, _: SocketAddr) -> Owner {
    Owner::NotTold
}

#[cfg(target_os = "linux")]
fn look_up(peer: SocketAddr, ours: SocketAddr) -> Owner {
    let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    diag::ask(canonical(peer), canonical(ours)).unwrap_or(Owner::NotTold)
}

/// The query and its answer, as `linux/inet_diag.h` defines them.
#[cfg(target_os = "linux")]
mod diag {
    use std::io;
    use std::net::{IpAddr, SocketAddr};

    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

    use super::Owner;

    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLMSG_ERROR: u16 = 2;
    const NLM_F_REQUEST: u16 = 1;
    const HEAD_BYTES: usize = 16;
    const TCP: u8 = 6;
    const ALL_STATES: u32 = u32::MAX;
    const NO_COOKIE: [u8; 8] = [0xff; 8];
    const NOT_FOUND: i32 = -(rustix::io::Errno::NOENT.raw_os_error());
    /// The offset of the user in an answer, after the header.
    const USER_AT: usize = 64;
    const INODE_AT: usize = 68;

    /// The owner of the socket with this local and this remote address.
    pub fn ask(local: SocketAddr, remote: SocketAddr) -> io::Result<Owner> {
        let kernel =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
        send(&kernel, &question(local, remote), SendFlags::empty())?;
        // The kernel has answered before `send` returns.
        let mut answer = [0; 512];
        let (_, length) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
        read(&answer[..length.min(answer.len())]).ok_or_else(|| io::Error::other("not an answer about a socket"))
    }

    fn question(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
        let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let mut body = vec![family.as_raw() as u8, TCP, 0, 0];
        body.extend(ALL_STATES.to_ne_bytes());
        body.extend(local.port().to_be_bytes());
        body.extend(remote.port().to_be_bytes());
        for end in [local, remote] {
            let mut bytes = [0; 16];
            match end.ip() {
                IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes = ip.octets(),
            }
            body.extend(bytes);
        }
        let any_interface = 0_u32;
        body.extend(any_interface.to_ne_bytes());
        body.extend(NO_COOKIE);
        let length = (HEAD_BYTES + body.len()) as u32;
        let (number, from) = (1_u32, 0_u32);
        let mut question = vec![];
        question.extend(length.to_ne_bytes());
        question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        question.extend(NLM_F_REQUEST.to_ne_bytes());
        question.extend(number.to_ne_bytes());
        question.extend(from.to_ne_bytes());
        question.extend(body);
        question
    }

    fn read(answer: &[u8]) -> Option<Owner> {
        let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
        let body = answer.get(HEAD_BYTES..)?;
        match kind {
            SOCK_DIAG_BY_FAMILY => {
                let (user, inode) = (word(body, USER_AT)?, word(body, INODE_AT)?);
                // A socket without an inode belongs to no process any more, and the system reports root as its user.
                Some(if inode == 0 { Owner::Gone } else { Owner::User(user) })
            }
            NLMSG_ERROR if word(body, 0)? as i32 == NOT_FOUND => Some(Owner::Gone),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_system_names_the_owner_of_a_socket_while_it_has_one() {
        for (ours, asked) in [("127.0.0.1:0", None), ("[::1]:0", None), ("[::]:0", Some("127.0.0.1"))] {
            // This machine has no IPv6.
            let Ok(listener) = TcpListener::bind(ours) else { continue };
            let at = listener.local_addr().unwrap();
            let to = asked.map_or(at, |ip| SocketAddr::new(ip.parse().unwrap(), at.port()));
            let stream = TcpStream::connect(to).unwrap();
            let accepted = listener.accept().unwrap().0;
            let (peer, ours) = (accepted.peer_addr().unwrap(), accepted.local_addr().unwrap());
            assert_eq!(look_up(peer, ours), Owner::User(geteuid().as_raw()), "{at}");
            drop(stream);
            assert_eq!(look_up(peer, ours), Owner::Gone, "closed, with an end that is not read");
            drop(accepted);
            assert_eq!(look_up(peer, ours), Owner::Gone, "there is no such socket");
        }
    }

    #[test]
    fn other_users_of_the_machine_are_not_trusted() {
        let us = geteuid().as_raw();
        assert!(Owner::User(us).is_trusted() && Owner::NotTold.is_trusted());
        assert!(!Owner::User(us + 1).is_trusted() && !Owner::Gone.is_trusted());
        assert_eq!(Owner::User(0).is_trusted(), us == 0, "root may be a proxy");
    }
}
