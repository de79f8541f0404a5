//! What an answer must look like: `response_format` and `grammar`.

use serde_json::{Map, Value};

use crate::{
    grammar::{Grammar, GrammarError, GrammarSpec},
    http::{
        AppState,
        error::{ApiError, ErrorCode},
        wire::wire_struct,
    },
};

wire_struct! {
    /// `response_format`.
    pub struct ResponseFormat {
        /// What kind.
        kind as "type": String,
        /// The schema of `json_schema`.
        json_schema: NamedSchema,
        /// A schema beside `json_object`, as llama-server takes it.
        schema: Map<String, Value>,
    }
}

wire_struct! {
    /// `json_schema`.
    pub struct NamedSchema {
        /// A name for it.
        name: String,
        /// What it is for.
        description: String,
        /// The schema.
        schema: Map<String, Value>,
        /// Whether it must hold: it always does.
        strict: bool,
    }
}

/// A constraint and the field that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    /// The field.
    pub param: &'static str,
    /// What it says.
    pub spec: GrammarSpec,
}

impl Constraint {
    /// What the two fields ask for.
    ///
    /// # Errors
    /// When they make no sense, alone or together.
    pub(super) fn of(format: Option<ResponseFormat>, grammar: Option<String>) -> Result<Option<Self>, ApiError> {
        let format = format.map(ResponseFormat::spec).transpose()?.flatten();
        match (format, grammar) {
            (Some(_), Some(_)) => {
                let message = "`grammar` is not possible beside a `response_format` other than `text`";
                Err(ApiError::invalid("grammar", message))
            }
            (Some(spec), None) => Ok(Some(Self { param: "response_format", spec })),
            (None, Some(text)) => Ok(Some(Self { param: "grammar", spec: GrammarSpec::Text(text) })),
            (None, None) => Ok(None),
        }
    }

    /// Makes it ready to be followed. May take a while.
    ///
    /// # Errors
    /// When it cannot be enforced: a fault of the field, never a weaker constraint (llama.cpp#19051).
    pub(in crate::http) async fn compile(self, state: &AppState) -> Result<Grammar, ApiError> {
        let state = state.clone();
        let compiled = tokio::task::spawn_blocking(move || {
            let grammars = state.loaded()?.grammar_engine().map_err(|error| refusal(self.param, &error))?;
            grammars.compile(&self.spec).map_err(|error| refusal(self.param, &error))
        });
        compiled.await.map_err(|_| ApiError::panicked())?
    }
}

/// The fault of field `param`, or the server's.
pub(in crate::http) fn refusal(param: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Busy => ApiError::new(ErrorCode::QueueFull, error.to_string()),
        GrammarError::Fault(_) => ApiError::new(ErrorCode::Internal, error.to_string()),
        GrammarError::Vocabulary(_) => ApiError::unsupported(param, format!("`{param}`: {error}")),
        _ => ApiError::invalid(param, format!("`{param}` cannot be enforced: {error}")),
    }
}

impl ResponseFormat {
    fn spec(self) -> Result<Option<GrammarSpec>, ApiError> {
        let refuse = |field: &str, why: &str| {
            let place = format!("response_format.{field}");
            Err(ApiError::invalid(&place, format!("`{place}` {why}")))
        };
        let schema = |schema: Map<String, Value>| Ok(Some(GrammarSpec::JsonSchema(schema.into())));
        match (self.kind.as_deref(), self.json_schema, self.schema) {
            (None, ..) => refuse("type", "is required"),
            (Some("json_schema"), Some(NamedSchema { schema: Some(given), .. }), None) => schema(given),
            (Some("json_schema"), Some(_), None) => refuse("json_schema.schema", "is required"),
            (Some("json_schema"), None, None) => refuse("json_schema", "is required"),
            (Some("json_object"), None, Some(given)) => schema(given),
            (Some("json_object"), None, None) => Ok(Some(GrammarSpec::JsonObject)),
            (Some("text"), None, None) => Ok(None),
            (Some("json_object" | "text"), Some(_), _) => refuse("json_schema", "belongs to the type `json_schema`"),
            (Some("json_schema" | "text"), _, Some(_)) => refuse("schema", "belongs to the type `json_object`"),
            (Some(_), ..) => refuse("type", "must be `text`, `json_object` or `json_schema`"),
        }
    }
}
