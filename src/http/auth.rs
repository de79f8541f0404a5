//! API keys: who may use the API.
//!
//! Keys are kept as SHA-256 digests only, so that none can reach a log, a dump of the configuration or an answer. What a
//! client sends is hashed likewise and compared with all of them in constant time: neither a beginning that fits, nor the
//! length, nor the place of a key in the list shows in the time an answer takes.

use std::fmt;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Longest key, bytes.
const MAX_KEY: usize = 512;
/// The header that other gateways use.
const X_API_KEY: &str = "x-api-key";

/// The keys that open the API; without any it is open.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<[u8; 32]>);

/// A key that cannot be used. Never tells the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It could not be sent in a header.
    #[error("key {0} must be 1 to {MAX_KEY} printable ASCII characters without spaces")]
    Malformed(usize),
    /// Nothing but comments and empty lines.
    #[error("there is no key in it: put one on each line; without keys, leave the option out")]
    Empty,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has no key.
    Missing,
    /// It has one that is not ours.
    Wrong,
}

impl ApiKeys {
    /// Keys as given, each as it is.
    ///
    /// # Errors
    /// The first malformed one, counted from 1.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, KeyError> {
        let digest = |(place, key): (usize, &str)| {
            let printable = (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
            if printable { Ok(Sha256::digest(key).into()) } else { Err(KeyError::Malformed(place)) }
        };
        (1..).zip(keys).map(digest).collect::<Result<_, _>>().map(Self)
    }

    /// Keys of a file: one on each line; empty lines and those that begin with `#` do not count, nor does white space
    /// around a key.
    ///
    /// # Errors
    /// When there is none, or one is malformed.
    pub fn from_lines(text: &str) -> Result<Self, KeyError> {
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
        let keys = Self::new(lines.filter(|line| !line.is_empty() && !line.starts_with('#')))?;
        if keys.0.is_empty() { Err(KeyError::Empty) } else { Ok(keys) }
    }

    /// These and those.
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Whether the API is closed.
    pub fn are_required(&self) -> bool {
        !self.0.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a request with these headers may come in: one of the keys as `Authorization: Bearer` or `X-Api-Key`.
    pub(super) fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if !self.are_required() {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let given = [bearer, headers.get(X_API_KEY).map(|value| value.as_bytes().trim_ascii())];
        let mut given = given.into_iter().flatten().filter(|key| !key.is_empty()).peekable();
        if given.peek().is_none() {
            return Err(Refusal::Missing);
        }
        let known = given.fold(Choice::from(0), |known, key| known | self.contains(key));
        if known.into() { Ok(()) } else { Err(Refusal::Wrong) }
    }

    /// Looks at every key, whichever fits.
    fn contains(&self, key: &[u8]) -> Choice {
        let digest: [u8; 32] = Sha256::digest(key).into();
        self.0.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&digest))
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.count())
    }
}

/// The credentials of the scheme `Bearer`, which has no case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn one_of_several_keys_opens() {
        let keys = ApiKeys::new(["first", "second"]).unwrap().and(ApiKeys::from_lines("third").unwrap());
        let (missing, wrong) = (Err(Refusal::Missing), Err(Refusal::Wrong));
        for (given, expected) in [
            (&[("authorization", "Bearer first")][..], Ok(())),
            (&[("authorization", "bearer   second ")], Ok(())),
            (&[("x-api-key", "third")], Ok(())),
            (&[("authorization", "Bearer nobody"), ("x-api-key", "first")], Ok(())),
            (&[("authorization", "Bearer firs")], wrong),
            (&[("authorization", "Bearer firstt")], wrong),
            (&[("authorization", "Bearer First")], wrong),
            (&[("x-api-key", "Bearer first")], wrong),
            (&[("authorization", "Basic first")], missing),
            (&[("authorization", "first")], missing),
            (&[("authorization", "Bearer ")], missing),
            (&[("authorization", "Bearer")], missing),
            (&[("x-api-key", "")], missing),
            (&[], missing),
        ] {
            assert_eq!(keys.admit(&headers(given)), expected, "{given:?}");
        }
        assert_eq!(ApiKeys::default().admit(&HeaderMap::new()), Ok(()));
    }

    #[test]
    fn a_file_has_one_key_a_line() {
        let keys = ApiKeys::from_lines("\u{feff}# staff\nalpha  \r\n\n  # none\n\tb#eta\t\n").unwrap();
        assert_eq!(keys, ApiKeys::new(["alpha", "b#eta"]).unwrap());
        for empty in ["", "\n\n", "# only\n  # comments\n"] {
            assert_eq!(ApiKeys::from_lines(empty), Err(KeyError::Empty), "{empty:?}");
        }
        assert_eq!(ApiKeys::from_lines("good\nwith space\n"), Err(KeyError::Malformed(2)));
    }

    #[test]
    fn keys_are_never_shown() {
        let keys = ApiKeys::new(["sesame-open-1"]).unwrap();
        assert_eq!(format!("{keys:?}"), "ApiKeys(1)");
        for bad in ["", "se same", "sesamé", "sesame\n", &"s".repeat(513)] {
            let error = ApiKeys::new(["ok", bad]).unwrap_err();
            assert_eq!(error, KeyError::Malformed(2));
            assert!(!error.to_string().contains("sesam"), "{error}");
        }
    }
}
