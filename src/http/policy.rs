//! `GET /v1/policy` and `POST /v1/policy/explain`: how this stage decides which way attention runs.

use axum::{Json, extract::State};
use serde::Serialize;

use super::{
    AppState,
    error::ApiError,
    extract::ApiJson,
    fields::{Effect::Works, Field},
    wire::wire_struct,
};
use crate::policy::{Contract, Explanation, Question, QuestionError};

wire_struct! {
    /// Body of `POST /v1/policy/explain`.
    pub struct ExplainRequest {
        /// Phase by name.
        phase: String,
        /// Rows of the pass.
        n_tokens: u32,
        /// KV rows that the last of them sees.
        n_kv: u32,
        /// Path to force.
        path: String,
        /// Backend by name.
        backend: String,
    }
}

/// The documented fields of `POST /v1/policy/explain`.
pub const EXPLAIN_FIELDS: &[Field] = &[
    Field {
        name: "phase",
        takes: "string: `decode`, `short_prefill`, `long_prefill`, `verify`, or `prefill`",
        schema: r#"{"enum":["decode","short_prefill","long_prefill","verify","prefill"]}"#,
        default: "required",
        effect: Works(
            "What the rows are for. `prefill` is a prompt of `n_tokens`, short or long by the package's threshold.",
        ),
        good: "\"verify\"",
        bad: &["7", "\"Decode\"", "\"\"", "[]"],
    },
    Field {
        name: "n_tokens",
        takes: "integer >= 1",
        schema: r#"{"type":"integer","minimum":1,"maximum":4294967295}"#,
        default: "required",
        effect: Works("Rows of the pass."),
        good: "1",
        bad: &["0", "-1", "1.5", "\"1\"", "4294967296"],
    },
    Field {
        name: "n_kv",
        takes: "integer >= `n_tokens`",
        schema: r#"{"type":"integer","minimum":1,"maximum":4294967295}"#,
        default: "required",
        effect: Works("KV rows that the last of them sees, itself included."),
        good: "4294967295",
        bad: &["0", "1", "-1", "\"8\""],
    },
    Field {
        name: "path",
        takes: "string: `dense`, `direct-sparse`, `compact-flash`, `sparse-chunked` or `fallback`",
        schema: r#"{"enum":["dense","direct-sparse","compact-flash","sparse-chunked","fallback"]}"#,
        default: "none",
        effect: Works("Path to force, as `attention_path` of a completion does."),
        good: "\"direct-sparse\"",
        bad: &["\"auto\"", "\"Dense\"", "7", "[]"],
    },
    Field {
        name: "backend",
        takes: "string: `cpu`, `cuda`, `metal` or `vulkan`",
        schema: r#"{"enum":["cpu","cuda","metal","vulkan"]}"#,
        default: "the stage's own",
        effect: Works("Answers as if the stage ran there."),
        good: "\"cuda\"",
        bad: &["\"tpu\"", "7", "{}"],
    },
];

/// Either what a resolver says, or that there is none.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer<T> {
    /// The engine asks the resolver.
    Resolved(Box<T>),
    /// The engine has one way to attend.
    Fixed {
        /// Always true.
        fixed_by_engine: bool,
        /// `general.architecture`.
        architecture: String,
        /// For people.
        words: &'static str,
    },
}

impl<T> Answer<T> {
    fn fixed(architecture: &str) -> Self {
        Self::Fixed { fixed_by_engine: true, architecture: architecture.to_owned(), words: FIXED }
    }
}

/// Why nothing is decided.
pub(in crate::http) const FIXED: &str =
    "the engine that serves this model has one way to attend: no policy applies and no path can be chosen";

/// The resolved contract of the stage.
pub(super) async fn show(State(state): State<AppState>) -> Result<Json<Answer<Contract>>, ApiError> {
    let card = &state.loaded()?.card;
    Ok(Json(match &card.policy {
        Some(resolver) => Answer::Resolved(Box::new(resolver.contract())),
        None => Answer::fixed(&card.arch),
    }))
}

/// What would be decided, and why.
pub(super) async fn explain(
    State(state): State<AppState>,
    ApiJson(request): ApiJson<ExplainRequest>,
) -> Result<Json<Answer<Explanation>>, ApiError> {
    state.unknown_fields().warn("policy.explain", &request.unknown);
    let card = &state.loaded()?.card;
    let required = |name| move || ApiError::invalid(name, format!("`{name}` is required"));
    let question = Question {
        phase: request.phase.as_deref().ok_or_else(required("phase"))?,
        n_tokens: request.n_tokens.ok_or_else(required("n_tokens"))?,
        n_kv: request.n_kv.ok_or_else(required("n_kv"))?,
        path: request.path.as_deref(),
        backend: request.backend.as_deref(),
    };
    Ok(Json(match &card.policy {
        Some(resolver) => Answer::Resolved(Box::new(resolver.answer(&question)?)),
        None => {
            // What makes no sense is refused whatever the engine.
            crate::policy::Resolver::default().answer(&question)?;
            Answer::fixed(&card.arch)
        }
    }))
}

impl From<QuestionError> for ApiError {
    fn from(error: QuestionError) -> Self {
        Self::invalid(error.field(), error.to_string())
    }
}
