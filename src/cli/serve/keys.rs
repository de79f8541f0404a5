//! API keys from flags, environment and files.

use std::{convert::Infallible, fmt, path::Path, str::FromStr};

use serde::Deserialize;

use super::config::ConfigError;
use crate::http::ApiKeys;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Keys given one by one, and those of a file.
///
/// # Errors
/// When the file cannot be read, or a key cannot be used.
pub(super) fn read(keys: Option<&[Secret]>, file: Option<&Path>) -> Result<ApiKeys, ConfigError> {
    let fault = |field: String| move |source| ConfigError::Key { field, source };
    let keys = keys.unwrap_or_default().iter().map(|key| key.0.as_str());
    let keys = ApiKeys::new(keys).map_err(fault("api-key".to_owned()))?;
    let Some(path) = file else { return Ok(keys) };
    let read = |source| ConfigError::Read { what: "file of API keys", path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let of_file = ApiKeys::from_lines(&text).map_err(fault(format!("api-key-file {}", path.display())))?;
    Ok(keys.and(of_file))
}
