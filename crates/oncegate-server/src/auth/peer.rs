//! The other end of a connection: which user of this machine it belongs to, where the system tells it.
//!
//! Linux lists the sockets of a network namespace with the users that own them. The peer of a connection over loopback is in that list,
//! as the socket whose local address is the peer's, and whose remote address is ours.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use rustix::process::geteuid;
use tokio::net::TcpStream;

/// The lists of sockets, of IPv4 and of IPv6. A socket of IPv6 may have an address of IPv4.
const LISTS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The system writes a list in parts, and may leave out a socket while others come and go.
const LOOKS: usize = 3;
const ROOT: u32 = 0;

#[derive(Debug, Default)]
pub struct Peer {
    /// Its address, and ours. None: the connection is over already.
    ends: Option<(SocketAddr, SocketAddr)>,
    /// Whether its owner is trusted. Looked up once, by the first request that has to know.
    is_trusted: OnceLock<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    User(u32),
    /// No process has the other end any more. Which user it was of is not known: a proxy may have closed it, once its client had left.
    Gone,
    /// The system has no such list.
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

    /// Whether it is a process of the server's own user, or of root, who may read the store anyway.
    pub fn is_trusted(&self) -> bool {
        let look = || self.ends.map_or(Owner::Gone, |(peer, ours)| look_up(peer, ours)).is_trusted();
        *self.is_trusted.get_or_init(look)
    }
}

impl Owner {
    fn is_trusted(self) -> bool {
        match self {
            Owner::User(user) => user == geteuid().as_raw() || user == ROOT,
            Owner::Gone => false,
            Owner::NotTold => true,
        }
    }
}

fn look_up(peer: SocketAddr, ours: SocketAddr) -> Owner {
    for _ in 0..LOOKS {
        let lists: Vec<String> = LISTS.into_iter().filter_map(|list| fs::read_to_string(list).ok()).collect();
        if lists.is_empty() {
            return Owner::NotTold;
        }
        if let Some(owner) = lists.iter().find_map(|list| find(list, peer, ours)) {
            return owner;
        }
    }
    Owner::Gone
}

/// The owner of a socket in a list. Its columns: number, local address, remote address, state, queues, timer, retransmits, user, time-out, inode.
fn find(list: &str, local: SocketAddr, remote: SocketAddr) -> Option<Owner> {
    list.lines().find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let ends = (address(columns.next()?)?, address(columns.next()?)?);
        if ends != (canonical(local), canonical(remote)) {
            return None;
        }
        let user = columns.nth(4)?.parse().ok()?;
        // A socket without an inode belongs to no process any more, and the system names root as its user.
        let has_inode = columns.nth(1)? != "0";
        Some(if has_inode { Owner::User(user) } else { Owner::Gone })
    })
}

/// An address as the system writes it: words of 32 bits in the machine's own byte order, in hexadecimal.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.as_flattened()).for_each(|(byte, read)| *byte = *read);
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_system_names_the_owner_of_a_socket_while_it_has_one() {
        for ours in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6.
            let Ok(listener) = TcpListener::bind(ours) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (peer, ours) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            let accepted = listener.accept().unwrap();
            assert_eq!(look_up(peer, ours), Owner::User(geteuid().as_raw()));
            drop(stream);
            assert_eq!(look_up(peer, ours), Owner::Gone, "closed, with an end that is not read");
            drop(accepted);
        }
    }

    #[test]
    fn a_line_is_found_by_both_of_its_ends() {
        let end = |at: &str| at.parse::<SocketAddr>().unwrap();
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let (home, mapped) = (word([127, 0, 0, 1]), word([0, 0, 255, 255]));
        let line = |ip: &str, user: u32, inode: u32| {
            format!(
                "   7: {ip}:A3F2 {ip}:11F8 01 00000000:00000000 00:00000000 00000000  {user}        0 {inode} 1 x\n"
            )
        };
        let header =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let (peer, ours) = (end("127.0.0.1:41970"), end("127.0.0.1:4600"));
        let list = format!("{header}{}", line(&home, 33, 9));
        assert_eq!(find(&list, peer, ours), Some(Owner::User(33)));
        assert_eq!(find(&list, ours, peer), None);
        assert_eq!(find(&format!("{header}{}", line(&home, 0, 0)), peer, ours), Some(Owner::Gone));
        let six = format!("{}{mapped}{home}", "0".repeat(16));
        assert_eq!(find(&line(&six, 33, 9), peer, ours), Some(Owner::User(33)), "an address of IPv4 in one of IPv6");
    }

    #[test]
    fn other_users_of_the_machine_are_not_trusted() {
        let us = geteuid().as_raw();
        assert!(Owner::User(us).is_trusted() && Owner::User(ROOT).is_trusted() && Owner::NotTold.is_trusted());
        assert!(!Owner::User(us + 1).is_trusted() && !Owner::Gone.is_trusted());
    }
}
