//! Loading, readiness, shutdown.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use super::*;
use crate::{
    http::{Ended, run},
    serve::{FinishReason, Phase},
};

fn without_model() -> (App, crate::serve::Starter) {
    let (serve, starter) = ServeHandle::loading(ServeOptions::default());
    let metrics = telemetry::local().unwrap().handle();
    let router = router(serve.clone(), metrics.clone(), HttpOptions::default());
    (App { router, serve, probe: Probe::default(), metrics }, starter)
}

/// llama.cpp PR#5594, PR#5548, omlx#1884: alive, not ready, and the body says why.
#[tokio::test]
async fn llama_cpp_5594_omlx_1884_loading() {
    let (app, starter) = without_model();
    let live = app.get("/livez").await;
    assert_eq!((live.status, &live.json()["phase"]), (StatusCode::OK, &json!("loading")));
    let ready = app.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["check"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("model")));
    let startup = app.get("/startupz").await;
    assert_eq!((startup.status, &startup.json()["check"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("model")));
    let health = app.get("/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(health.json(), json!({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}));
    assert_eq!(app.get("/metrics").await.status, StatusCode::OK);
    for answer in [app.complete(json!({})).await, app.get("/v1/models").await, app.post("/tokenize", &json!({})).await]
    {
        answer.assert_error(503, "model_loading", "");
        assert_eq!(answer.header("retry-after"), "5");
    }

    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 1, 64, 64);
    starter.start(Box::new(engine), std::sync::Arc::new(text), card()).unwrap();
    for path in ["/livez", "/readyz", "/startupz", "/health"] {
        assert_eq!(app.get(path).await.status, StatusCode::OK, "{path}");
    }
    assert_eq!(app.get("/health").await.json(), json!({"status": "ok"}));
    app.assert_alive().await;
}

/// A model that does not load will not load on the next try either.
#[tokio::test]
async fn a_failed_load_is_said_and_not_retried() {
    let (app, starter) = without_model();
    starter.failed("layer 7 is missing");
    for path in ["/livez", "/readyz", "/startupz", "/health"] {
        let answer = app.get(path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(answer.json().to_string().contains("layer 7 is missing"), "{path}");
    }
    let answer = app.complete(json!({})).await;
    answer.assert_error(500, "internal_error", "");
    assert_eq!(answer.header("x-should-retry"), "false");
    assert!(answer.error().3.contains("layer 7 is missing"));
}

/// A thread that has shown no life for too long fails both probes; requests are not needed to find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_engine_fails_the_probes() {
    let text = FakeText::new();
    let (engine, gate) = FakeEngine::new(&text, 1, 64, 64).gated();
    let options = HttpOptions { stuck_after: Duration::ZERO, ..HttpOptions::default() };
    let app = App::with(engine, text, options);
    let waiting = tokio::spawn(app.router.clone().oneshot(post("/v1/completions", request(json!({})).to_string())));
    gate.batch();
    until(|| app.serve.status().beat_age.is_some_and(|age| !age.is_zero())).await;
    for path in ["/livez", "/readyz"] {
        let answer = app.get(path).await;
        assert_eq!(
            (answer.status, &answer.json()["check"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("engine")),
            "{path}"
        );
    }
    drop(gate);
    assert_eq!(bounded(waiting).await.unwrap().unwrap().status(), StatusCode::OK);
}

/// A server on a real socket.
pub(super) struct Served {
    pub(super) app: App,
    pub(super) address: std::net::SocketAddr,
    signals: mpsc::Sender<()>,
    server: tokio::task::JoinHandle<std::io::Result<Ended>>,
}

pub(super) async fn served(engine: FakeEngine, options: HttpOptions) -> Served {
    served_with(FakeText::new(), engine, options).await
}

pub(super) async fn served_with(text: FakeText, engine: FakeEngine, options: HttpOptions) -> Served {
    let app = App::with(engine, text, options.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (signals, receiver) = mpsc::channel(4);
    let server = tokio::spawn(run(listener, app.serve.clone(), app.metrics.clone(), options, receiver));
    Served { app, address, signals, server }
}

impl Served {
    /// Sends one request on a connection of its own.
    pub(super) async fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = bounded(TcpStream::connect(self.address)).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        stream
    }

    pub(super) async fn get(&self, path: &str) -> String {
        rest(self.open("GET", path, "").await).await
    }
}

pub(super) async fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    bounded(stream.read_to_string(&mut text)).await.unwrap();
    text
}

fn stream_body() -> String {
    request(json!({"stream": true, "max_tokens": 20})).to_string()
}

/// vllm RFC#24885, litellm#28714: not ready at once, running streams finish, new requests are refused, then the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_24885_litellm_28714_running_streams_finish() {
    let (engine, gate) = FakeEngine::new(&FakeText::new(), 1, 64, 64).gated();
    let served = served(engine, HttpOptions::default()).await;
    let running = served.open("POST", "/v1/completions", &stream_body()).await;
    gate.batch();
    served.signals.send(()).await.unwrap();
    until(|| served.app.serve.status().phase == Phase::Draining).await;
    served.app.complete(json!({})).await.assert_error(503, "shutting_down", "");
    // The start is over for good; only readiness is not.
    for (path, status) in [("/startupz", 200), ("/livez", 200), ("/readyz", 503)] {
        assert_eq!(served.app.get(path).await.status.as_u16(), status, "{path}");
    }
    drop(gate);
    let text = rest(running).await;
    assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"), "{text}");
    assert_eq!(bounded(served.server).await.unwrap().unwrap(), Ended::Drained);
    assert!(TcpStream::connect(served.address).await.is_err());
}

/// Balancers need time to see that `/readyz` fails: until the delay is over, requests are still taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_taken_during_the_drain_delay() {
    let engine = FakeEngine::new(&FakeText::new(), 1, 64, 64);
    let options = HttpOptions { drain_delay: Duration::from_secs(3600), ..HttpOptions::default() };
    let served = served(engine, options).await;
    assert!(served.get("/readyz").await.starts_with("HTTP/1.1 200"));
    served.signals.send(()).await.unwrap();
    bounded(async { while served.get("/readyz").await.starts_with("HTTP/1.1 200") {} }).await;
    assert!(served.get("/readyz").await.contains("shutting down"));
    assert!(served.get("/livez").await.starts_with("HTTP/1.1 200"));
    let answer = rest(served.open("POST", "/v1/completions", &stream_body()).await).await;
    assert!(answer.contains("data: [DONE]"), "{answer}");
    // A second signal does not wait.
    served.signals.send(()).await.unwrap();
    assert_eq!(bounded(served.server).await.unwrap().unwrap(), Ended::Forced);
}

/// What still runs after the timeout gets an error event, not a cut connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_with_an_error_event_after_the_timeout() {
    let (engine, gate) = FakeEngine::new(&FakeText::new(), 1, 64, 64).gated();
    let options = HttpOptions { shutdown_timeout: Duration::ZERO, ..HttpOptions::default() };
    let served = served(engine, options).await;
    let running = served.open("POST", "/v1/completions", &stream_body()).await;
    gate.step();
    gate.batch();
    served.signals.send(()).await.unwrap();
    until(|| served.app.serve.status().phase >= Phase::Draining).await;
    drop(gate);
    let text = rest(running).await;
    assert!(text.contains("\"code\":\"shutting_down\"") && !text.contains("[DONE]"), "{text}");
    assert_eq!(bounded(served.server).await.unwrap().unwrap(), Ended::Drained);
}

/// llama.cpp#24496 over a real socket: the connection closes, the lane is free, whether an answer had begun or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_cpp_24496_a_closed_connection_frees_the_lane() {
    // Room for an answer that would take for ever.
    let engine = FakeEngine::new(&FakeText::new(), 1, 1 << 20, 64);
    let served = served(engine, HttpOptions::default()).await;
    for (cancelled, stream) in [(1, true), (2, false)] {
        let body = request(json!({"stream": stream, "max_tokens": 1 << 19})).to_string();
        let mut running = served.open("POST", "/v1/completions", &body).await;
        if stream {
            bounded(running.read_exact(&mut [0; 200])).await.unwrap();
        } else {
            until(|| served.app.serve.status().lanes_busy == 1).await;
        }
        drop(running);
        until(|| served.app.serve.totals().finished(FinishReason::Cancelled) == cancelled).await;
    }
    served.app.assert_alive().await;
}
