//! Flags of links between stages, alike for `serve` and `stage`.

use crate::{
    chain::{LinkOptions, LinkToken, Security, SecurityError, Target, TargetError, TlsFiles, WireDtype},
    cli::serve::keys::Secret,
};
use clap::{Args, ValueEnum, builder::BoolishValueParser};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// How hidden rows travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireType {
    /// As they are.
    F32,
    /// Rounded to half precision.
    F16,
}

/// What may be set about links; in a config file the table `[link]`.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkFlags {
    /// Stage that has the layers behind these, as `http://host:19000`, or `https://` with TLS
    #[arg(long, env = "SKIPPY_NEXT", value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// File with the token that all stages of a chain share
    #[arg(long, env = "SKIPPY_LINK_TOKEN_FILE", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_token_file: Option<PathBuf>,
    /// The token itself. Others on this machine can read command lines: `--link-token-file` and the environment are safer
    #[arg(long, env = "SKIPPY_LINK_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    #[serde(skip_serializing)]
    pub link_token: Option<Secret>,
    /// Certificate authority of the stages, PEM; with `--link-cert` and `--link-key` links use mutual TLS
    #[arg(long, env = "SKIPPY_LINK_CA", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_ca: Option<PathBuf>,
    /// Certificate of this stage, PEM
    #[arg(long, env = "SKIPPY_LINK_CERT", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_cert: Option<PathBuf>,
    /// Key of this stage's certificate, PEM
    #[arg(long, env = "SKIPPY_LINK_KEY", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_key: Option<PathBuf>,
    /// Allow links without TLS beyond this machine: whoever sees the network sees prompts and answers
    #[arg(long, env = "SKIPPY_INSECURE", value_parser = BoolishValueParser::new(), num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,
    /// How hidden rows travel to the next stage; f16 halves the bytes and rounds [default: f32]
    #[arg(long, env = "SKIPPY_WIRE_DTYPE", value_enum, value_name = "TYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_dtype: Option<WireType>,
    /// Seconds without an answer from the next machine after which a link counts as lost [default: 10]
    #[arg(long, env = "SKIPPY_LINK_TIMEOUT", value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_timeout: Option<u32>,
    /// Seconds that a step may take on all later stages, besides 2 for each row in flight [default: 60]
    #[arg(long, env = "SKIPPY_STEP_TIMEOUT", value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_timeout: Option<u32>,
    /// Seconds that running requests wait for a lost stage, to go on with the same tokens; 0: they fail at once [default: 0]
    #[arg(long, env = "SKIPPY_RESUME_TIMEOUT", value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_timeout: Option<u32>,
}

/// A link setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkFlagError {
    /// A flag without the others that it needs.
    #[error("`--link-ca`, `--link-cert` and `--link-key` belong together: {missing} is missing")]
    HalfTls {
        /// The first that is missing.
        missing: &'static str,
    },
    /// Two tokens.
    #[error("`--link-token` and `--link-token-file` exclude each other")]
    TwoTokens,
    /// A file that cannot be read.
    #[error("cannot read the link token `{path}`: {source}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A value outside its range.
    #[error("`--{flag}` must be between {low} and {high}, got {got}")]
    Range {
        /// The flag.
        flag: &'static str,
        /// At least.
        low: u32,
        /// At most.
        high: u32,
        /// What it is.
        got: u32,
    },
    /// A token that protects nothing, or files that are no PEM.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// An address that is none.
    #[error("`--next`: {0}")]
    Target(#[from] TargetError),
}

macro_rules! first_of {
    ($first:ident, $second:ident; $($field:ident),*) => {
        LinkFlags { $($field: $first.$field.or($second.$field),)* }
    };
}

impl LinkFlags {
    /// These flags, and those of `file` where none is set.
    #[must_use]
    pub fn or(self, file: Self) -> Self {
        first_of!(self, file; next, link_token_file, link_token, link_ca, link_cert, link_key, insecure, wire_dtype,
            link_timeout, step_timeout, resume_timeout)
    }

    /// Where the next stage is, if there is one.
    ///
    /// # Errors
    /// [`LinkFlagError::Target`].
    pub fn target(&self) -> Result<Option<Target>, LinkFlagError> {
        Ok(self.next.as_deref().map(str::parse).transpose()?)
    }

    /// How stages prove who they are. Reads the files.
    ///
    /// # Errors
    /// [`LinkFlagError`].
    pub fn security(&self) -> Result<Security, LinkFlagError> {
        let token = match (&self.link_token, &self.link_token_file) {
            (Some(_), Some(_)) => return Err(LinkFlagError::TwoTokens),
            (Some(token), None) => Some(LinkToken::new(token.expose())?),
            (None, Some(path)) => Some(read_token(path)?),
            (None, None) => None,
        };
        let tls = match (&self.link_ca, &self.link_cert, &self.link_key) {
            (None, None, None) => None,
            (Some(ca), Some(cert), Some(key)) => {
                Some(TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() })
            }
            (None, ..) => return Err(LinkFlagError::HalfTls { missing: "--link-ca" }),
            (_, None, _) => return Err(LinkFlagError::HalfTls { missing: "--link-cert" }),
            (.., None) => return Err(LinkFlagError::HalfTls { missing: "--link-key" }),
        };
        Ok(Security { tls, token, insecure: self.insecure.unwrap_or(false) })
    }

    /// How long things may take on a link.
    ///
    /// # Errors
    /// [`LinkFlagError::Range`].
    pub fn options(&self) -> Result<LinkOptions, LinkFlagError> {
        let timeout = seconds("link-timeout", self.link_timeout.unwrap_or(10), 1, 3600)?;
        Ok(LinkOptions {
            timeout,
            // Several pings before a link counts as lost.
            keep_alive: (timeout / 5).clamp(Duration::from_millis(200), Duration::from_secs(2)),
            ..LinkOptions::default()
        })
    }

    /// How long a step may take on all later stages.
    ///
    /// # Errors
    /// [`LinkFlagError::Range`].
    pub fn step_timeout(&self) -> Result<Duration, LinkFlagError> {
        seconds("step-timeout", self.step_timeout.unwrap_or(60), 1, 86_400)
    }

    /// How hidden rows travel to the next stage.
    pub fn wire(&self) -> WireDtype {
        match self.wire_dtype {
            Some(WireType::F16) => WireDtype::F16,
            Some(WireType::F32) | None => WireDtype::F32,
        }
    }
}

fn read_token(path: &Path) -> Result<LinkToken, LinkFlagError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| LinkFlagError::Read { path: path.to_owned(), source })?;
    Ok(LinkToken::new(&text)?)
}

fn seconds(flag: &'static str, got: u32, low: u32, high: u32) -> Result<Duration, LinkFlagError> {
    match (low..=high).contains(&got) {
        true => Ok(Duration::from_secs(u64::from(got))),
        false => Err(LinkFlagError::Range { flag, low, high, got }),
    }
}
