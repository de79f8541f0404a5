//! Tokens by name, as log-probabilities list them.

use crate::text::TextModel;

/// Text of a token; `bytes:\x..` when it is not text by itself, as OpenAI writes it.
pub(super) fn name(text: &dyn TextModel, token: i32) -> String {
    match String::from_utf8(text.piece(token, true)) {
        Ok(text) => text,
        Err(error) => {
            let hex = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
            std::iter::once("bytes:".to_owned()).chain(hex).collect()
        }
    }
}
