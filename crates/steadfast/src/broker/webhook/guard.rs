//! Where a webhook may lead.
//!
//! Others say where their endpoint is, and our servers call it: somebody may say the address of a database, of a neighbour, or of
//! the place where a cloud hands out credentials. So the URL is checked when the webhook is built, and each address that its
//! name stands for when a connection is made. Both end here, in [`check_address`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::uri::PathAndQuery;
use url::{Host, Url};

/// What was allowed beyond public addresses by https.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowed {
    pub(super) plaintext: bool,
    pub(super) private: bool,
}

/// Where a webhook leads: a URL that passed the checks.
pub(super) struct Endpoint {
    pub(super) host: Host<String>,
    pub(super) port: u16,
    pub(super) is_tls: bool,
    /// Host and port, as the header `host` has them.
    pub(super) authority: String,
    pub(super) path: PathAndQuery,
    allowed: Allowed,
}

impl Endpoint {
    /// Checks a URL.
    ///
    /// # Errors
    /// Which rule it breaks, and what to do. The text has no more of the URL than scheme and host: the rest may be secret.
    pub(super) fn new(url: &str, allowed: Allowed) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| {
            format!("a webhook's URL cannot be read: {error}; write one as https://example.org/hooks")
        })?;
        let rule = |rule: &str| Err(format!("the webhook {} {rule}", origin(&url)));
        let is_tls = match url.scheme() {
            "https" => true,
            "http" if allowed.plaintext => false,
            "http" => {
                return rule("is not encrypted; write https, or add .allow_plaintext() for a server on this machine");
            }
            _ => return rule("is not one of https; write https"),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return rule("has a user or a password in it; remove them, signatures tell the other side who sends");
        }
        if url.fragment().is_some() {
            return rule("has a part after `#`, which is never sent; remove it");
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return rule("names no host; write one as https://example.org/hooks");
        };
        let path = url[url::Position::BeforePath..url::Position::AfterQuery].parse();
        let Ok(path) = path else {
            return rule("has a path that HTTP cannot send; percent-encode it");
        };
        let endpoint = Self {
            authority: url[url::Position::BeforeHost..url::Position::AfterPort].to_owned(),
            host: host.to_owned(),
            port,
            is_tls,
            path,
            allowed,
        };
        match endpoint.check_host() {
            Ok(()) => Ok(endpoint),
            Err(broken) => rule(&broken),
        }
    }

    /// What of the host can be judged before anybody is asked for its addresses.
    fn check_host(&self) -> Result<(), String> {
        match &self.host {
            Host::Ipv4(address) => self.check_address((*address).into()),
            Host::Ipv6(address) => self.check_address((*address).into()),
            // These names always stand for the machine itself (RFC 6761).
            Host::Domain(name) if is_localhost(name) => self.check_address(Ipv4Addr::LOCALHOST.into()),
            Host::Domain(_) if !self.is_tls => Err(PLAINTEXT.to_owned()),
            Host::Domain(_) => Ok(()),
        }
    }

    /// Whether a connection may be made to this address.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub(super) fn check_address(&self, address: IpAddr) -> Result<(), String> {
        check_address(address, self.is_tls, self.allowed)
    }

    /// The endpoint as it may be shown: path and query may be secret.
    pub(super) fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }
}

const PLAINTEXT: &str = "is not encrypted and leads beyond this machine; write https";

/// Scheme and host, without anything that may be secret.
fn origin(url: &Url) -> String {
    format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default())
}

fn is_localhost(name: &str) -> bool {
    // The parser has made it lower-case.
    let name = name.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

/// What an address is for.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Public,
    Loopback,
    Private(&'static str),
    /// No endpoint is there, or none that anybody should be led to.
    Special(&'static str),
}

fn check_address(address: IpAddr, is_tls: bool, allowed: Allowed) -> Result<(), String> {
    let place = place(address);
    let what = match place {
        Place::Loopback if allowed.private => return Ok(()),
        _ if !is_tls => return Err(PLAINTEXT.to_owned()),
        Place::Public => return Ok(()),
        Place::Private(_) if allowed.private => return Ok(()),
        Place::Special(what) => return Err(format!("leads to {address}, {what}; no webhook may go there")),
        Place::Loopback => "this machine itself",
        Place::Private(what) => what,
    };
    Err(format!(
        "leads to {address}, {what}; add .allow_private() if it is yours"
    ))
}

fn place(address: IpAddr) -> Place {
    match address {
        IpAddr::V4(address) => place_v4(address),
        IpAddr::V6(address) => place_v6(address),
    }
}

/// By IANA's registry of special-purpose addresses.
fn place_v4(address: Ipv4Addr) -> Place {
    match address.octets() {
        [0, ..] => Place::Special("which means no host"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Place::Private("a private address"),
        [100, 100, 100, 200] => Place::Special("where a cloud hands out credentials"),
        [100, 64..=127, ..] => Place::Private("an address inside a provider's network"),
        [127, ..] => Place::Loopback,
        [169, 254, ..] => Place::Special("a link-local address, where clouds hand out credentials"),
        [168, 63, 129, 16] => Place::Special("where Azure speaks to its machines"),
        [192, 0, 0, _] | [192, 88, 99, _] => Place::Special("an address of protocols"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Place::Special("an address for documentation"),
        [198, 18..=19, ..] => Place::Special("an address for benchmarks"),
        [224..=239, ..] => Place::Special("a multicast address"),
        [240..=255, ..] => Place::Special("a reserved address"),
        _ => Place::Public,
    }
}

/// What is not known to be public is not: only 2000::/3 is handed out, and parts of it are special too.
fn place_v6(address: Ipv6Addr) -> Place {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Place::Loopback,
        // IPv4-mapped, IPv4-translated and NAT64: the connection ends at the address inside.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            place_v4(Ipv4Addr::new(a, b, c, d))
        }
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => Place::Special("where a cloud hands out credentials"),
        [0xfc00..=0xfdff, ..] => Place::Private("a private address"),
        [0xfe80..=0xfeff, ..] => Place::Special("a link-local or site-local address"),
        [0xff00..=0xffff, ..] => Place::Special("a multicast address"),
        // Teredo, 6to4 and others: nobody serves there any more, and they hide IPv4 addresses.
        [0x2001, 0..=0x1ff, ..] | [0x2002, ..] => Place::Special("an address of protocols"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Place::Special("an address for documentation"),
        [0x2000..=0x3fff, ..] => Place::Public,
        _ => Place::Special("no address of a host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Allowed = Allowed {
        plaintext: false,
        private: false,
    };
    const EVERYTHING: Allowed = Allowed {
        plaintext: true,
        private: true,
    };

    fn refuses(address: &str, allowed: Allowed) -> bool {
        check_address(address.parse().expect(address), true, allowed).is_err()
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2001:200::1",
            "2a00:1450::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
        ] {
            assert!(!refuses(address, NOTHING), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_only_for_those_who_say_so() {
        for address in [
            "127.0.0.1",
            "127.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.0",
            "192.168.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "::1",
            "fc00::1",
            "fdff:ffff::1",
            "fd00:ec2::253",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::192.168.0.1",
        ] {
            assert!(refuses(address, NOTHING), "{address}");
            assert!(!refuses(address, EVERYTHING), "{address}");
        }
    }

    #[test]
    fn special_addresses_are_for_nobody() {
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "168.63.129.16",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::2",
            "::127.0.0.1",
            "::169.254.169.254",
            "::ffff:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::0.0.0.0",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:0:7f00:1::",
            "2001:2::1",
            "2001:10::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(refuses(address, EVERYTHING), "{address}");
        }
    }

    #[test]
    fn plaintext_stays_on_this_machine() {
        let check = |url| Endpoint::new(url, EVERYTHING).map(|_| ());
        for url in [
            "http://127.0.0.1:1/",
            "http://[::1]/",
            "http://LocalHost./",
            "http://a.localhost/",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in [
            "http://example.org/",
            "http://1.1.1.1/",
            "http://10.0.0.1/",
            "http://[fd00::1]/",
        ] {
            assert!(check(url).is_err_and(|rule| rule.contains("write https")), "{url}");
        }
        let half = Allowed {
            plaintext: true,
            private: false,
        };
        assert!(Endpoint::new("http://127.0.0.1/", half).is_err(), "it is still private");
    }

    #[test]
    fn an_endpoint_is_what_the_url_says() {
        let endpoint = Endpoint::new("HTTPS://Example.ORG:8443/hooks/7?a=b", NOTHING).expect("a public URL");
        assert_eq!(endpoint.authority, "example.org:8443");
        assert_eq!(endpoint.path.as_str(), "/hooks/7?a=b");
        assert_eq!(endpoint.origin(), "https://example.org:8443");
        let endpoint = Endpoint::new("https://[2606:4700::1]", NOTHING).expect("a public URL");
        assert_eq!((&*endpoint.authority, endpoint.port), ("[2606:4700::1]", 443));
        assert_eq!(endpoint.path.as_str(), "/");
    }

    #[test]
    fn a_rule_shows_nothing_that_may_be_secret() {
        for url in [
            "https://user:hunter2@example.org/hunter2?hunter2",
            "http://example.org/hunter2?hunter2",
            "https://10.0.0.1/hunter2#hunter2",
            "https://10.0.0.1/hunter2",
            "hunter2",
            "https://hunter2 x/",
        ] {
            let rule = Endpoint::new(url, NOTHING).err().expect(url);
            assert!(!rule.contains("hunter2"), "{rule}");
        }
    }
}
