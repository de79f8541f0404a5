//! Pages of other origins: off unless the operator names them.

use std::{str::FromStr, time::Duration};

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Which pages may call the API from a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigin {
    /// All of them.
    Any,
    /// Those of one origin, as browsers write it: `https://example.org:8443`.
    Is(HeaderValue),
}

/// An origin that no browser sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `*` or `scheme://host[:port]` in lower case without a path, got `{0}`")]
pub struct OriginError(String);

impl FromStr for CorsOrigin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let refused = || OriginError(text.chars().take(200).collect());
        if text == "*" {
            return Ok(Self::Any);
        }
        let (scheme, host) = text.split_once("://").ok_or_else(refused)?;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]+".contains(&byte);
        if scheme.is_empty() || host.is_empty() || !scheme.bytes().chain(host.bytes()).all(plain) {
            return Err(refused());
        }
        HeaderValue::from_str(text).map(Self::Is).map_err(|_| refused())
    }
}

/// The layer for `origins`; `None` sends no header at all.
pub(in crate::http) fn layer(origins: &[CorsOrigin]) -> Option<CorsLayer> {
    let mut listed = Vec::new();
    for origin in origins {
        match origin {
            CorsOrigin::Any => return Some(layer_for(AllowOrigin::any())),
            CorsOrigin::Is(origin) => listed.push(origin.clone()),
        }
    }
    (!listed.is_empty()).then(|| layer_for(AllowOrigin::list(listed)))
}

fn layer_for(origins: AllowOrigin) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // The official client for browsers sends a dozen headers of its own, which change with its version.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("x-should-retry"),
            header::RETRY_AFTER,
        ])
        .max_age(Duration::from_secs(600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        assert_eq!("*".parse(), Ok(CorsOrigin::Any));
        for good in ["http://localhost:3000", "https://a.example.org", "http://[::1]:80", "chrome-extension://abc"] {
            assert!(matches!(good.parse(), Ok(CorsOrigin::Is(value)) if value == good), "{good}");
        }
        for bad in
            ["", "localhost", "https://", "://x", "https://a/", "https://A.org", "https://a b", "null", "http://a,b"]
        {
            assert!(bad.parse::<CorsOrigin>().is_err(), "{bad}");
        }
    }
}
