//! `POST /tokenize` and `POST /detokenize`, with the shapes of llama-server.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::{
    AppState,
    error::{ApiError, ErrorCode},
    extract::ApiJson,
    fields::{Effect::Works, Field},
    wire::wire_struct,
};
use crate::text::{TextError, TextModel};

/// Texts up to this long are tokenized on the request's own task; longer ones would hold it up.
const INLINE_BYTES: usize = 16 << 10;

/// Texts longer than this take turns: a tokenizer may need seconds for megabytes that do not even fit into the context.
const LONG_BYTES: usize = 256 << 10;
/// Long texts that are tokenized at once.
static LONG_TEXTS: Semaphore = Semaphore::const_new(2);

wire_struct! {
    /// Body of `POST /tokenize`.
    pub struct TokenizeRequest {
        /// The text.
        content: String,
        /// Whether to add what the model expects around a prompt, such as BOS. Default: false.
        add_special: bool,
        /// Whether control tokens written out in the text count as such. Default: true.
        parse_special: bool,
        /// Whether to answer with the piece of each token too. Default: false.
        with_pieces: bool,
    }
}

wire_struct! {
    /// Body of `POST /detokenize`.
    pub struct DetokenizeRequest {
        /// Token ids.
        tokens: Vec<i64>,
    }
}

/// The documented fields of `POST /tokenize`.
pub const TOKENIZE_FIELDS: &[Field] = &[
    Field {
        name: "content",
        takes: "string",
        schema: r#"{"type":"string"}"#,
        default: "required",
        effect: Works("The text."),
        good: "\"abc\"",
        bad: &["7", "[]", "{}"],
    },
    Field {
        name: "add_special",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "false",
        effect: Works("Adds what the model expects around a prompt, such as BOS."),
        good: "true",
        bad: &["1", "\"true\""],
    },
    Field {
        name: "parse_special",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "true",
        effect: Works("Takes control tokens written out in the text as such."),
        good: "false",
        bad: &["1", "\"true\""],
    },
    Field {
        name: "with_pieces",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "false",
        effect: Works(
            "Answers with `{\"id\", \"piece\"}` for each token; a piece that is not UTF-8 by itself is an array of bytes.",
        ),
        good: "true",
        bad: &["1", "\"true\""],
    },
];

/// The documented fields of `POST /detokenize`.
pub const DETOKENIZE_FIELDS: &[Field] = &[Field {
    name: "tokens",
    takes: "array of token ids",
    schema: r#"{"type":"array","items":{"type":"integer","minimum":0}}"#,
    default: "required",
    effect: Works("The tokens; control tokens are written out, bytes that are not UTF-8 become U+FFFD."),
    good: "[97,98]",
    bad: &["7", "\"a\"", "[-1]", "[99999]", "[1.5]", "[null]", "[[1]]"],
}];

/// Answer of `POST /tokenize`.
#[derive(Debug, Serialize)]
pub(super) struct Tokens {
    tokens: Vec<Token>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Token {
    Id(i32),
    WithPiece { id: i32, piece: Piece },
}

/// Text where it is text, else bytes.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// Answer of `POST /detokenize`.
#[derive(Debug, Serialize)]
pub(super) struct Content {
    content: String,
}

pub(super) async fn tokenize(
    State(state): State<AppState>,
    ApiJson(request): ApiJson<TokenizeRequest>,
) -> Result<Json<Tokens>, ApiError> {
    state.unknown_fields().warn("tokenize", &request.unknown);
    let text = state.loaded()?.text.clone();
    let content = request.content.ok_or_else(|| ApiError::invalid("content", "`content` is required"))?;
    let (add_special, parse_special) = (request.add_special.unwrap_or(false), request.parse_special.unwrap_or(true));
    let ids = ids_of(&text, content, add_special, parse_special).await?.map_err(|error| refused("content", &error))?;
    let tokens = if request.with_pieces.unwrap_or(false) {
        ids.into_iter().map(|id| Token::WithPiece { id, piece: piece(text.as_ref(), id) }).collect()
    } else {
        ids.into_iter().map(Token::Id).collect()
    };
    Ok(Json(Tokens { tokens }))
}

pub(super) async fn detokenize(
    State(state): State<AppState>,
    ApiJson(request): ApiJson<DetokenizeRequest>,
) -> Result<Json<Content>, ApiError> {
    state.unknown_fields().warn("detokenize", &request.unknown);
    let text = &state.loaded()?.text;
    let tokens = request.tokens.ok_or_else(|| ApiError::invalid("tokens", "`tokens` is required"))?;
    let tokens = in_vocabulary("tokens", &tokens, text.n_vocab())?;
    let bytes: Vec<u8> = tokens.into_iter().flat_map(|token| text.piece(token, true)).collect();
    Ok(Json(Content { content: String::from_utf8_lossy(&bytes).into_owned() }))
}

fn piece(text: &dyn TextModel, id: i32) -> Piece {
    match String::from_utf8(text.piece(id, true)) {
        Ok(text) => Piece::Text(text),
        Err(error) => Piece::Bytes(error.into_bytes()),
    }
}

/// Token ids of `content`; long texts go to a thread of their own, so that the runtime is not held up.
///
/// # Errors
/// The outer error is the server's, the inner one the tokenizer's.
pub(super) async fn ids_of(
    text: &Arc<dyn TextModel>,
    content: String,
    add_special: bool,
    parse_special: bool,
) -> Result<Result<Vec<i32>, TextError>, ApiError> {
    if content.len() <= INLINE_BYTES {
        return Ok(text.tokenize(&content, add_special, parse_special));
    }
    // Who leaves while waiting here costs nothing; once begun, a text is read to its end.
    let place = match content.len() > LONG_BYTES {
        true => Some(LONG_TEXTS.acquire().await.map_err(|_| ApiError::panicked())?),
        false => None,
    };
    let text = text.clone();
    let tokenized = tokio::task::spawn_blocking(move || {
        let _place = place;
        text.tokenize(&content, add_special, parse_special)
    });
    tokenized.await.map_err(|_| ApiError::panicked())
}

/// The tokenizer's refusal, as the fault of field `param`.
pub(super) fn refused(param: &'static str, error: &TextError) -> ApiError {
    match error {
        TextError::Tokenize(_) => ApiError::invalid(param, format!("`{param}`: {error}")),
        other => ApiError::new(ErrorCode::Internal, other.to_string()),
    }
}

/// Token ids from the wire, each inside the vocabulary.
///
/// # Errors
/// The first id outside it, by place.
pub(super) fn in_vocabulary(param: &str, tokens: &[i64], n_vocab: u32) -> Result<Vec<i32>, ApiError> {
    let checked = |(place, &token): (usize, &i64)| {
        let inside = (0..i64::from(n_vocab)).contains(&token);
        i32::try_from(token).ok().filter(|_| inside).ok_or_else(|| {
            let message = format!("`{param}[{place}]` is token {token}, the vocabulary has ids 0..{n_vocab}");
            ApiError::invalid(param, message)
        })
    };
    tokens.iter().enumerate().map(checked).collect()
}
