//! Spans of requests: what they tell, and that they tell no text.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{
    Dispatch, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt as _},
};

use super::*;
use crate::telemetry::spans::TARGET;

/// Keeps what was recorded on the spans of requests, in the order of their making.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<u64, Fields>>>);

#[derive(Clone, Debug, Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if attributes.metadata().target() == TARGET {
            attributes.record(self.0.lock().unwrap().entry(id.into_u64()).or_default());
        }
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        if let Some(fields) = self.0.lock().unwrap().get_mut(&id.into_u64()) {
            record.record(fields);
        }
    }
}

impl Seen {
    /// Fields of the only span since the last call.
    fn take(&self) -> BTreeMap<String, String> {
        let mut spans: Vec<Fields> = std::mem::take(&mut *self.0.lock().unwrap()).into_values().collect();
        assert_eq!(spans.len(), 1, "{spans:?}");
        spans.remove(0).0
    }
}

fn fields<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Sends what this thread does to `layer`.
///
/// While a process has only one dispatcher, `tracing` asks the thread that comes to a span first whether anybody wants it, and
/// remembers the answer; that may be a thread of another test, without any. With two it asks both.
fn subscribe(layer: impl Layer<Registry> + Send + Sync) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
}

#[tokio::test]
async fn a_span_has_the_attributes_of_the_conventions_and_no_text() {
    let seen = Seen::default();
    let _guard = subscribe(seen.clone());
    let app = App::new();
    let mut common = fields([
        ("request.id", "trace-me"),
        ("http.request.method", "POST"),
        ("http.response.status_code", "200"),
        ("otel.kind", "server"),
        ("gen_ai.provider.name", "skippy-stage"),
        ("gen_ai.request.model", "fake"),
        ("gen_ai.response.model", "fake"),
        ("gen_ai.usage.output_tokens", "8"),
    ]);
    for (path, body, more) in [
        (
            "/v1/completions",
            request(json!({"prompt": "SECRET", "stream": true})),
            [("otel.name", "text_completion fake"), ("gen_ai.operation.name", "text_completion")],
        ),
        (
            "/v1/chat/completions",
            chat_request(json!({"user": "SECRET"})),
            [("otel.name", "chat fake"), ("gen_ai.operation.name", "chat")],
        ),
    ] {
        let mut request = post(path, body.to_string());
        request.headers_mut().insert("x-request-id", "trace-me".parse().unwrap());
        assert_eq!(app.send(request).await.status, StatusCode::OK);
        let mut span = seen.take();
        assert!(span.remove("gen_ai.usage.input_tokens").unwrap().parse::<u32>().unwrap() > 0);
        common.extend(fields(more));
        common.insert("http.route".to_owned(), path.to_owned());
        assert_eq!(span, common);
    }
}

#[tokio::test]
async fn failures_have_a_type_and_only_ours_are_errors() {
    let seen = Seen::default();
    let _guard = subscribe(seen.clone());
    let app = App::new();
    app.complete(json!({"n": 0})).await;
    let span = seen.take();
    assert_eq!((span["error.type"].as_str(), span.get("otel.status_code")), ("invalid_value", None));
    assert_eq!(span["otel.name"], "text_completion fake");

    app.probe.inject(crate::serve::testing::Fault::Engine);
    app.complete(json!({})).await;
    let span = seen.take();
    assert_eq!((span["error.type"].as_str(), span["otel.status_code"].as_str()), ("internal_error", "ERROR"));

    let response =
        bounded(app.router.clone().oneshot(post("/v1/completions", request(json!({"stream": true})).to_string())));
    drop(response.await.unwrap());
    assert_eq!(seen.take()["error.type"], "cancelled");

    app.get("/v1/nothing/SECRET").await;
    let span = seen.take();
    assert_eq!(span["otel.name"], "GET unmatched");
    assert!(!format!("{span:?}").contains("SECRET"), "{span:?}");

    // Probes have none.
    app.get("/readyz").await;
    assert!(seen.0.lock().unwrap().is_empty());
}

#[cfg(feature = "otlp")]
mod export {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::telemetry::otlp::Export;

    /// One request to a collector, answered with 200: its head and its body.
    async fn collected(collector: &TcpListener) -> (String, Vec<u8>) {
        let (mut stream, _) = bounded(collector.accept()).await.unwrap();
        let mut got = Vec::new();
        let head = loop {
            got.push(bounded(stream.read_u8()).await.unwrap());
            if got.ends_with(b"\r\n\r\n") {
                break String::from_utf8(std::mem::take(&mut got)).unwrap();
            }
        };
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap()];
        bounded(stream.read_exact(&mut body)).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        (head, body)
    }

    /// The whole way: a request with a trace of its own, a span, a batch, a collector.
    #[tokio::test]
    async fn spans_reach_a_collector() {
        let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let export = Export::start(&format!("http://{}", collector.local_addr().unwrap())).unwrap();
        let guard = subscribe(export.layer());
        let app = App::new();
        let mut request = post("/v1/completions", request(json!({"prompt": "SECRET"})).to_string());
        let parent = "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01";
        request.headers_mut().insert("traceparent", parent.parse().unwrap());
        assert_eq!(app.send(request).await.status, StatusCode::OK);
        drop(guard);
        // Dropping sends what is left, and waits for it.
        let dropped = tokio::task::spawn_blocking(move || drop(export));
        let (head, body) = collected(&collector).await;
        bounded(dropped).await.unwrap();

        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.to_ascii_lowercase().contains("content-type: application/x-protobuf"), "{head}");
        let contains = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
        for text in [
            "text_completion fake",
            "gen_ai.usage.input_tokens",
            "gen_ai.response.finish_reasons",
            "length",
            "skippy-stage",
        ] {
            assert!(contains(text.as_bytes()), "{text}: {}", String::from_utf8_lossy(&body));
        }
        assert!(contains(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]), "the trace of the request goes on");
        assert!(!contains(b"SECRET"));
    }
}
