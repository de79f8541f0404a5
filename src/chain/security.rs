//! Who may be at the other end of a link.
//!
//! Without TLS, links stay on this machine, unless the operator says `insecure`. TLS is mutual: both ends show a certificate
//! of the same authority. A token may come on top; it is compared in constant time and never shown.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tonic::{
    Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
    transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig},
};

/// Longest token, bytes.
const MAX_TOKEN: usize = 512;

/// How long a TLS handshake may take.
const TLS_TIME: Duration = Duration::from_secs(5);

/// What protects the links of a process.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// Mutual TLS.
    pub tls: Option<TlsFiles>,
    /// A secret that both ends know.
    pub token: Option<LinkToken>,
    /// Leave TLS out also where others can listen.
    pub insecure: bool,
}

/// PEM files of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authority that the other end's certificate must come from.
    pub ca: PathBuf,
    /// The certificate to show, and those between it and the authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A secret that both ends of a link know.
#[derive(Clone)]
pub struct LinkToken {
    header: MetadataValue<Ascii>,
    digest: [u8; 32],
}

/// Why links cannot be made in this way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// It could not be sent in a header. Never tells the token.
    #[error("a link token must be 1 to {MAX_TOKEN} printable ASCII characters without spaces, on a line of its own")]
    Token,
    /// A PEM file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The certificates cannot be used.
    #[error("the certificates of the link cannot be used: {0}")]
    Tls(String),
    /// Others could listen, or speak.
    #[error(
        "{what} is not on this machine and the link has no TLS: give certificates (`--link-ca`, `--link-cert`, \
         `--link-key`), or say `--insecure` where the network is trusted"
    )]
    Plain {
        /// Address to connect to or to listen on.
        what: String,
    },
    /// TLS is asked for and there are no certificates.
    #[error("{what} asks for TLS: give `--link-ca`, `--link-cert` and `--link-key`")]
    NoCertificates {
        /// Address to connect to.
        what: String,
    },
}

impl LinkToken {
    /// The first line of `text` that is not empty; the file that it comes from may end with a line break.
    ///
    /// # Errors
    /// [`SecurityError::Token`].
    pub fn new(text: &str) -> Result<Self, SecurityError> {
        let token = text.trim_start_matches('\u{feff}').trim();
        if !(1..=MAX_TOKEN).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SecurityError::Token);
        }
        let mut header: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| SecurityError::Token)?;
        header.set_sensitive(true);
        Ok(Self { header, digest: Sha256::digest(token).into() })
    }
}

impl fmt::Debug for LinkToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkToken(..)")
    }
}

impl Security {
    /// Whether `what` may be talked to, or listened on: an address on this machine (`loopback`), or with TLS.
    ///
    /// # Errors
    /// [`SecurityError::Plain`].
    pub fn allow(&self, what: &str, loopback: bool) -> Result<(), SecurityError> {
        if loopback || self.insecure || self.tls.is_some() {
            return Ok(());
        }
        Err(SecurityError::Plain { what: what.to_owned() })
    }

    pub(super) fn client_tls(&self, host: &str) -> Result<Option<ClientTlsConfig>, SecurityError> {
        let Some(files) = &self.tls else { return Ok(None) };
        let (ca, identity) = files.read()?;
        let config = ClientTlsConfig::new().ca_certificate(ca).identity(identity).domain_name(host).timeout(TLS_TIME);
        Ok(Some(config))
    }

    pub(super) fn server_tls(&self) -> Result<Option<ServerTlsConfig>, SecurityError> {
        let Some(files) = &self.tls else { return Ok(None) };
        let (ca, identity) = files.read()?;
        Ok(Some(ServerTlsConfig::new().client_ca_root(ca).identity(identity).timeout(TLS_TIME)))
    }

    /// Shows the token to the other end.
    pub(super) fn show(&self, metadata: &mut MetadataMap) {
        if let Some(token) = &self.token {
            metadata.insert("authorization", token.header.clone());
        }
    }

    /// Whether the other end has shown the token, if there is one.
    pub(super) fn admit(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let Some(token) = &self.token else { return Ok(()) };
        let given = metadata.get("authorization").and_then(|value| bearer(value.as_bytes()));
        let given =
            given.ok_or_else(|| Status::unauthenticated("this stage wants a link token (`--link-token-file`)"))?;
        let digest: [u8; 32] = Sha256::digest(given).into();
        if digest.ct_eq(&token.digest).into() {
            return Ok(());
        }
        Err(Status::unauthenticated("the link token is not that of this stage"))
    }
}

impl TlsFiles {
    fn read(&self) -> Result<(Certificate, Identity), SecurityError> {
        Ok((Certificate::from_pem(read(&self.ca)?), Identity::from_pem(read(&self.cert)?, read(&self.key)?)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SecurityError> {
    std::fs::read(path).map_err(|source| SecurityError::Read { path: path.to_owned(), source })
}

/// The credentials of the scheme `Bearer`, which has no case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security(token: Option<&str>) -> Security {
        Security { token: token.map(|token| LinkToken::new(token).unwrap()), ..Security::default() }
    }

    #[test]
    fn only_the_token_opens() {
        let ours = security(Some("sesame\n"));
        for (theirs, admitted) in [
            (Some("sesame"), true),
            (Some("Sesame"), false),
            (Some("sesam"), false),
            (Some("sesamee"), false),
            (None, false),
        ] {
            let mut metadata = MetadataMap::new();
            security(theirs).show(&mut metadata);
            assert_eq!(ours.admit(&metadata).is_ok(), admitted, "{theirs:?}");
            assert!(security(None).admit(&metadata).is_ok());
        }
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", "Basic sesame".parse().unwrap());
        assert!(ours.admit(&metadata).is_err());
    }

    #[test]
    fn tokens_are_never_shown() {
        let ours = security(Some("sesame"));
        assert!(!format!("{ours:?}").contains("sesam"));
        for bad in ["", "\n", "se same", "sesam\u{e9}", "two\nlines", &"s".repeat(513)] {
            let error = LinkToken::new(bad).unwrap_err().to_string();
            assert!(error.contains("1 to 512 printable") && !error.contains("sesam"), "{error}");
        }
    }

    #[test]
    fn plain_links_stay_on_this_machine() {
        let tls = Some(TlsFiles { ca: "a".into(), cert: "b".into(), key: "c".into() });
        for (security, elsewhere) in [
            (security(None), false),
            (security(Some("sesame")), false),
            (Security { insecure: true, ..Security::default() }, true),
            (Security { tls, ..Security::default() }, true),
        ] {
            assert!(security.allow("http://127.0.0.1:1", true).is_ok());
            let allowed = security.allow("http://b:1", false);
            assert_eq!(allowed.is_ok(), elsewhere, "{security:?}");
            if let Err(error) = allowed {
                assert!(error.to_string().starts_with("http://b:1 is not on this machine"), "{error}");
            }
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let tls = Some(TlsFiles { ca: "/none/ca.pem".into(), cert: "b".into(), key: "c".into() });
        let error = Security { tls, ..Security::default() }.server_tls().unwrap_err();
        assert_eq!(error.to_string(), "cannot read /none/ca.pem");
    }
}
