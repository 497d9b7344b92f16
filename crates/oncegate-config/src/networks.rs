//! The addresses that the server may call.

use std::net::IpAddr;
use std::sync::LazyLock;

use ipnet::IpNet;

/// Networks that are not public: this machine, private networks, unspecified, reserved, multicast and broadcast addresses,
/// and ranges whose addresses stand for others.
static REFUSED: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    const NETWORKS: [&str; 30] = [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        // The address of a cloud's own services, such as metadata.
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",
        "::1/128",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/32",
        "2001:db8::/32",
        "2002::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    ];
    NETWORKS.iter().map(|network| network.parse().expect("the table has networks")).collect()
});

/// Whether the server may call this address: it is public, or the configuration allows it.
pub fn is_allowed(address: IpAddr, allow: &[IpNet]) -> bool {
    let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
    !is_in(&REFUSED) || is_in(allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_loopback_link_local_metadata_and_mapped_addresses_are_refused_unless_allowed() {
        let refused = [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:8.8.8.8",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "ff02::1",
            "168.63.129.16",
            "::7f00:1",
            "::ffff:0:7f00:1",
            "::ffff:169.254.169.254",
        ];
        for address in refused {
            assert!(!is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
        for address in ["8.8.8.8", "172.32.0.1", "2606:4700::1111"] {
            assert!(is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
        let allow = ["127.0.0.0/8".parse().unwrap()];
        assert!(is_allowed("127.0.0.9".parse().unwrap(), &allow));
        assert!(!is_allowed("10.0.0.1".parse().unwrap(), &allow));
    }
}
