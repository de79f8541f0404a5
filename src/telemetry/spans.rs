//! One span for each HTTP request, from its head to the end of its answer, with the attributes of OpenTelemetry's
//! conventions for HTTP and generative AI. Never holds text of a prompt or an answer.
//!
//! Log lines of a request carry the id of its span. With the feature `otlp` spans can be exported, see `otlp`.

use tracing::{Span, field::Empty};

use super::labels::Route;

/// Target of request spans, for filters.
pub const TARGET: &str = "skippy::request";

/// The span of one request.
#[derive(Clone, Debug)]
pub struct RequestSpan {
    span: Span,
    method: &'static str,
    route: Route,
}

/// How a request ended.
#[derive(Clone, Debug, Default)]
pub struct RequestEnd<'a> {
    /// Status of the answer; `None` when there was none.
    pub status: Option<u16>,
    /// Code of the error, if it was one.
    pub error: Option<&'a str>,
    /// The model, once loaded.
    pub model: Option<&'a str>,
    /// Tokens of the prompts.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Why the answer ended.
    pub finish_reason: Option<&'static str>,
}

impl RequestSpan {
    /// A request has come. `header` looks its headers up, for the trace that it belongs to.
    pub fn start<'a>(
        method: &'static str,
        route: Route,
        id: Option<&str>,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Self {
        let span = tracing::info_span!(
            target: TARGET,
            "request",
            request.id = id,
            http.request.method = method,
            http.route = route.label(),
            http.response.status_code = Empty,
            "error.type" = Empty,
            otel.name = Empty,
            otel.kind = Empty,
            otel.status_code = Empty,
            gen_ai.operation.name = Empty,
            gen_ai.provider.name = Empty,
            gen_ai.request.model = Empty,
            gen_ai.response.model = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
        );
        #[cfg(feature = "otlp")]
        super::otlp::join_trace(&span, &header);
        #[cfg(not(feature = "otlp"))]
        let _ = header;
        Self { span, method, route }
    }

    /// The span, to run handlers in.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The request is over.
    pub fn end(&self, end: &RequestEnd<'_>) {
        let span = &self.span;
        span.record("otel.kind", "server");
        if let Some(status) = end.status {
            span.record("http.response.status_code", i64::from(status));
        }
        if let Some(error) = end.error {
            span.record("error.type", error);
        }
        // A fault of the client's is not one of the server's.
        let failed = end.status.is_none_or(|status| status >= 500 || (status < 400 && end.error.is_some()));
        if failed {
            span.record("otel.status_code", "ERROR");
        }
        let (Some(operation), Some(model)) = (operation(self.route), end.model) else {
            span.record("otel.name", format!("{} {}", self.method, self.route.label()));
            return;
        };
        span.record("otel.name", format!("{operation} {model}"));
        span.record("gen_ai.operation.name", operation);
        span.record("gen_ai.provider.name", "skippy-stage");
        span.record("gen_ai.request.model", model);
        if let Some(reason) = end.finish_reason {
            span.record("gen_ai.response.model", model);
            span.record("gen_ai.usage.input_tokens", i64::from(end.prompt_tokens));
            span.record("gen_ai.usage.output_tokens", i64::from(end.completion_tokens));
            #[cfg(feature = "otlp")]
            super::otlp::set_finish_reasons(span, reason);
            #[cfg(not(feature = "otlp"))]
            let _ = reason;
        }
    }
}

/// The conventions' name of what an endpoint does, for those that generate.
fn operation(route: Route) -> Option<&'static str> {
    match route {
        Route::Completions => Some("text_completion"),
        Route::ChatCompletions => Some("chat"),
        _ => None,
    }
}
