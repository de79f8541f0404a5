//! What is served: one table that the router, the metrics, `/openapi.json` and the documentation are made from.

use axum::{
    Router,
    routing::{MethodRouter, get, post},
};

use super::{
    AppState, chain,
    fields::Field,
    metrics, models,
    openai::{self, chat, completions},
    openapi, policy, probes, tokenize,
};
use crate::telemetry::labels::Route;

/// One operation.
pub(super) struct Operation {
    /// Pattern for the router.
    pub(super) pattern: &'static str,
    /// Label in metrics, which is also the path as people write it; probes have none.
    pub(super) route: Option<Route>,
    /// GET or POST, with its handler.
    pub(super) method: Method,
    /// For people, without a full stop.
    pub(super) summary: &'static str,
    /// Fields of the request's JSON body.
    pub(super) body: Option<&'static [Field]>,
    /// Name of the answer's schema under `components` of the document.
    pub(super) answer: Answer,
    /// Whether it generates: it may wait, and the queue, a deadline or the engine may fail it.
    pub(super) generates: bool,
}

/// A method and how it is routed.
pub(super) enum Method {
    Get(fn() -> MethodRouter<AppState>),
    Post(fn() -> MethodRouter<AppState>),
}

/// What an operation answers when all goes well; names are those of schemas.
pub(super) enum Answer {
    /// JSON.
    Json(&'static str),
    /// JSON, or server-sent events of the second schema.
    JsonOrEvents(&'static str, &'static str),
    /// The text of metrics.
    Text,
    /// JSON that also explains a 503.
    Probe(&'static str),
}

impl Operation {
    /// The path with parameters as people write them.
    pub(super) fn path(&self) -> &'static str {
        self.route.map_or(self.pattern, Route::label)
    }

    /// `GET` or `POST`.
    pub(super) fn verb(&self) -> &'static str {
        match self.method {
            Method::Get(_) => "GET",
            Method::Post(_) => "POST",
        }
    }

    const fn get(pattern: &'static str, route: Route, handler: fn() -> MethodRouter<AppState>) -> Self {
        let (method, answer) = (Method::Get(handler), Answer::Text);
        Self { pattern, route: Some(route), method, summary: "", body: None, answer, generates: false }
    }

    const fn post(
        pattern: &'static str,
        route: Route,
        fields: &'static [Field],
        handler: fn() -> MethodRouter<AppState>,
    ) -> Self {
        Self { method: Method::Post(handler), body: Some(fields), ..Self::get(pattern, route, handler) }
    }

    const fn probe(pattern: &'static str, handler: fn() -> MethodRouter<AppState>) -> Self {
        Self { route: None, ..Self::get(pattern, Route::Unmatched, handler) }
    }

    const fn answers(self, answer: Answer, summary: &'static str) -> Self {
        Self { answer, summary, ..self }
    }

    const fn generating(self) -> Self {
        Self { generates: true, ..self }
    }
}

/// What needs a key, where there are keys.
pub(super) const API: &[Operation] = &[
    Operation::post("/v1/completions", Route::Completions, completions::fields::FIELDS, || post(completions::create))
        .answers(Answer::JsonOrEvents("Completion", "Completion"), "Text completion, whole or streamed")
        .generating(),
    Operation::post("/v1/chat/completions", Route::ChatCompletions, chat::fields::FIELDS, || post(chat::create))
        .answers(Answer::JsonOrEvents("ChatCompletion", "ChatCompletionChunk"), "Conversations, whole or streamed")
        .generating(),
    Operation::get("/v1/models", Route::Models, || get(models::list))
        .answers(Answer::Json("Models"), "The model served, as a list of one"),
    Operation::get("/v1/models/{*id}", Route::Model, || get(models::show))
        .answers(Answer::Json("Model"), "The model served"),
    Operation::post("/tokenize", Route::Tokenize, tokenize::TOKENIZE_FIELDS, || post(tokenize::tokenize))
        .answers(Answer::Json("Tokens"), "Text to token ids"),
    Operation::post("/detokenize", Route::Detokenize, tokenize::DETOKENIZE_FIELDS, || post(tokenize::detokenize))
        .answers(Answer::Json("Content"), "Token ids to text"),
    Operation::get("/v1/chain", Route::Chain, || get(chain::show))
        .answers(Answer::Json("Chain"), "The stages that serve the model"),
    Operation::get("/v1/policy", Route::Policy, || get(policy::show))
        .answers(Answer::Json("Policy"), "How the server decides which way attention runs"),
    Operation::post("/v1/policy/explain", Route::PolicyExplain, policy::EXPLAIN_FIELDS, || post(policy::explain))
        .answers(Answer::Json("Explanation"), "Which way attention would run, and why"),
    Operation::get("/openapi.json", Route::OpenApi, || get(openapi::show))
        .answers(Answer::Json("OpenApi"), "This API as an OpenAPI 3.1 document"),
];

/// What is open to everybody, asked every few seconds, and neither counted nor logged.
pub(super) const PROBES: &[Operation] = &[
    Operation::probe("/livez", || get(probes::live))
        .answers(Answer::Probe("Probe"), "Whether the process is alive; if not, restart it"),
    Operation::probe("/readyz", || get(probes::ready))
        .answers(Answer::Probe("Probe"), "Whether new requests are welcome"),
    Operation::probe("/startupz", || get(probes::started))
        .answers(Answer::Probe("Probe"), "Whether the model has been loaded"),
    Operation::probe("/health", || get(probes::health))
        .answers(Answer::Probe("Health"), "Whether new requests are welcome, in the words of llama-server"),
    Operation::probe("/metrics", || get(metrics::scrape)).answers(Answer::Text, "Metrics for Prometheus"),
];

/// Adds `operations` to `router`.
pub(super) fn mount(router: Router<AppState>, operations: &[Operation]) -> Router<AppState> {
    operations.iter().fold(router, |router, operation| {
        let (Method::Get(handler) | Method::Post(handler)) = operation.method;
        router.route(operation.pattern, handler())
    })
}

/// Label of a route pattern.
pub(super) fn label(pattern: Option<&str>) -> Route {
    let Some(pattern) = pattern else { return Route::Unmatched };
    match API.iter().find(|operation| operation.pattern == pattern) {
        Some(operation) => operation.route.unwrap_or(Route::Unmatched),
        None if openai::UNSUPPORTED.contains(&pattern) => Route::Unsupported,
        None => Route::Unmatched,
    }
}

/// Everything that is served, for the message of a 404.
pub(super) fn served() -> String {
    let all = API.iter().chain(PROBES).map(|operation| format!("{} {}", operation.verb(), operation.path()));
    format!("this server has {}", all.collect::<Vec<_>>().join(", "))
}
