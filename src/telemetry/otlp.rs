//! Export of request spans over OTLP (HTTP with protobuf), for a collector on this machine or in this network.
//!
//! There is no TLS here: let a collector add it. Batches are sent from a thread of their own, and what cannot be sent is
//! dropped; requests never wait. `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`,
//! `OTEL_TRACES_SAMPLER` and the `OTEL_BSP_*` variables hold as elsewhere.

use std::{env, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry::{
    Array, StringValue, Value,
    propagation::{Extractor, TextMapPropagator},
    trace::{TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracerProvider, Tracer},
};
use tokio::{net::TcpStream, runtime::Handle};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

use super::{metrics::VERSION, spans};

/// Time for one batch, connecting included.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the last batch at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer of a collector that is read, bytes.
const MAX_ANSWER: usize = 1 << 20;

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// Not an address to send to.
    #[error("`{0}` must be `http://host:port`; for TLS, run a collector in between")]
    Endpoint(String),
    /// The exporter refuses its settings.
    #[error("the exporter of spans cannot be made: {0}")]
    Exporter(String),
}

/// The export, until it is dropped, which sends what is left.
#[derive(Debug)]
pub struct Export {
    provider: SdkTracerProvider,
    tracer: Tracer,
}

impl Export {
    /// Starts to export to the collector at `endpoint`, from within a Tokio runtime that outlives the export.
    ///
    /// # Errors
    /// [`OtlpError`].
    pub fn start(endpoint: &str) -> Result<Self, OtlpError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client { runtime: Handle::current() })
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(traces_url(endpoint)?)
            .build()
            .map_err(|error| OtlpError::Exporter(error.to_string()))?;
        let mut resource = Resource::builder();
        if env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("skippy-stage");
        }
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        let scope = opentelemetry::InstrumentationScope::builder("skippy-stage").with_version(VERSION).build();
        let tracer = provider.tracer_with_scope(scope);
        Ok(Self { provider, tracer })
    }

    /// What a subscriber needs: takes the spans of requests, and nothing else.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        OpenTelemetryLayer::new(self.tracer.clone())
            .with_threads(false)
            .with_location(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            // A span is begun when it is over: only then is its name known.
            .with_context_activation(false)
            .with_filter(filter_fn(|metadata| metadata.is_span() && metadata.target() == spans::TARGET))
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT) {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}

/// Where spans go: the path of the convention, unless one is given.
fn traces_url(endpoint: &str) -> Result<String, OtlpError> {
    let refused = || OtlpError::Endpoint(endpoint.chars().take(200).collect());
    let uri: hyper::Uri = endpoint.parse().map_err(|_| refused())?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(refused)?;
    Ok(match uri.path() {
        "" | "/" => format!("http://{authority}/v1/traces"),
        path => format!("http://{authority}{path}"),
    })
}

/// Makes `span` part of the trace that a W3C `traceparent` header names.
pub(super) fn join_trace<'a>(span: &Span, header: &dyn Fn(&str) -> Option<&'a str>) {
    if header("traceparent").is_none() {
        return;
    }
    let parent = TraceContextPropagator::new().extract(&Headers(header));
    if parent.span().span_context().is_valid() {
        // Fails where nothing is exported.
        let _ = span.set_parent(parent);
    }
}

/// An array, which a field of a span cannot be.
pub(super) fn set_finish_reasons(span: &Span, reason: &'static str) {
    let reasons = Array::String(vec![StringValue::from(reason)]);
    span.set_attribute("gen_ai.response.finish_reasons", Value::Array(reasons));
}

struct Headers<'f, 'a>(&'f dyn Fn(&str) -> Option<&'a str>);

impl Extractor for Headers<'_, '_> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.0)(key)
    }

    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// Sends batches. The thread that makes them has no runtime, so they are sent on ours.
#[derive(Debug)]
struct Client {
    runtime: Handle,
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let sent = self.runtime.spawn(async { tokio::time::timeout(SEND_TIMEOUT, send(request)).await? });
        Box::pin(async move { sent.await? })
    }
}

/// One request on a connection of its own: there is one every few seconds at most.
async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri();
    let (host, port) = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80));
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(origin_form(request)?).await?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(head, body))
}

/// A request for `/path` with a `Host`, as servers expect it.
fn origin_form(request: Request<Bytes>) -> Result<Request<Full<Bytes>>, HttpError> {
    let (mut head, body) = request.into_parts();
    if let Some(authority) = head.uri.authority() {
        head.headers.insert(hyper::header::HOST, authority.as_str().parse()?);
    }
    head.uri = head.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    Ok(Request::from_parts(head, Full::new(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_http_addresses() {
        for (given, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            ("http://[::1]:4318/custom/path", "http://[::1]:4318/custom/path"),
        ] {
            assert_eq!(traces_url(given).unwrap(), url);
        }
        for bad in ["", "collector:4318", "https://collector:4318", "/v1/traces", "http://"] {
            assert!(matches!(traces_url(bad), Err(OtlpError::Endpoint(_))), "{bad}");
        }
    }
}
