//! Where the next stage is.

use std::{fmt, net::IpAddr, str::FromStr};

use tonic::transport::Uri;

/// `http://HOST:PORT`, or `https://HOST:PORT`, which insists on TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    text: String,
    host: String,
    port: u16,
    tls: bool,
}

/// A text that does not say where a stage is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{got}` must be of the form http://HOST:PORT or https://HOST:PORT: {reason}")]
pub struct TargetError {
    /// The text.
    pub got: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Target {
    /// Name or address, IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it insists on TLS.
    pub(super) fn wants_tls(&self) -> bool {
        self.tls
    }

    /// The address for gRPC.
    pub(super) fn uri(&self, tls: bool) -> String {
        let scheme = if tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => format!("{scheme}://[{}]:{}", self.host, self.port),
            false => format!("{scheme}://{}:{}", self.host, self.port),
        }
    }

    /// Whether it is on this machine, whatever its name means.
    pub(super) async fn is_loopback(&self) -> std::io::Result<bool> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(address.to_canonical().is_loopback());
        }
        let mut addresses = tokio::net::lookup_host((self.host.as_str(), self.port)).await?.peekable();
        Ok(addresses.peek().is_some() && addresses.all(|address| address.ip().to_canonical().is_loopback()))
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let refuse = |reason| TargetError { got: text.to_owned(), reason };
        let uri: Uri = text.parse().map_err(|_| refuse("it is no URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refuse("it begins otherwise")),
        };
        if !matches!(uri.path_and_query().map(|path| path.as_str()), None | Some("" | "/")) {
            return Err(refuse("it has a path"));
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(refuse("it has a user name"));
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().filter(|&port| port > 0).ok_or_else(|| refuse("it has no port"))?;
        if host.is_empty() {
            return Err(refuse("it has no host"));
        }
        Ok(Self { text: text.trim_end_matches('/').to_owned(), host, port, tls })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_a_stage_is() {
        for (text, host, uri) in [
            ("http://b:19000", "b", "http://b:19000"),
            ("https://10.0.0.7:1/", "10.0.0.7", "https://10.0.0.7:1"),
            ("http://[::1]:65535", "::1", "http://[::1]:65535"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.host(), target.uri(target.wants_tls()).as_str()), (host, uri));
            assert_eq!(target.to_string(), text.trim_end_matches('/'));
        }
        for text in [
            "",
            "b:19000",
            "b",
            "http://b",
            "http://b:0",
            "http://:1",
            "http://b:65536",
            "ftp://b:1",
            "http://b:1/x",
            "http://u@b:1",
            "http://b:1?x",
            "http:///x",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` must be of the form http://HOST:PORT")), "{error}");
        }
    }

    #[tokio::test]
    async fn knows_this_machine() {
        for (text, ours) in [
            ("http://127.0.0.1:1", true),
            ("http://127.9.9.9:1", true),
            ("http://[::1]:1", true),
            ("http://[::ffff:127.0.0.1]:1", true),
            ("http://0.0.0.0:1", false),
            ("http://192.0.2.1:1", false),
            ("http://localhost:1", true),
        ] {
            assert_eq!(text.parse::<Target>().unwrap().is_loopback().await.unwrap(), ours, "{text}");
        }
    }
}
