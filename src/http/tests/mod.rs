//! Router tests over the deterministic engine of [`crate::serve::testing`]. Names carry the public report that a test
//! comes from.

mod answers;
mod auth;
mod chat;
mod connections;
mod docs;
mod errors;
mod fuzz;
mod lifecycle;
mod openapi;
mod policy;
mod requests;
mod schema;
mod series;
mod spans;
mod speculation;
mod streams;
mod structured;
mod tools;

use std::{future::Future, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, Request, StatusCode, header},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{HttpOptions, router};
use crate::{
    serve::{
        ModelCard, ServeHandle, ServeOptions, spawn,
        testing::{FakeEngine, FakeText, Probe, card},
    },
    spec::Speculation,
    telemetry::{self, PrometheusHandle},
    text::TextModel,
};

/// How long a test waits before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// A router over a fake engine: 4 lanes, 1024 KV rows, so 256 tokens for each request.
struct App {
    router: Router,
    serve: ServeHandle,
    probe: Probe,
    metrics: PrometheusHandle,
}

/// An answer read to its end.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl App {
    /// The default rule: each answer depends on the whole history.
    fn new() -> Self {
        let text = FakeText::new();
        Self::with(FakeEngine::new(&text, 4, 1024, 64), text, HttpOptions::default())
    }

    /// Answers every prompt with `pieces`, one token each, then the end.
    fn replying(pieces: &[&[u8]]) -> Self {
        let text = FakeText::with_pieces(pieces.iter().copied());
        let tokens = crate::serve::testing::FIRST_PIECE..;
        let engine = FakeEngine::new(&text, 4, 1024, 64).replying(tokens.take(pieces.len()));
        Self::with(engine, text, HttpOptions::default())
    }

    fn with(engine: FakeEngine, text: impl TextModel + 'static, options: HttpOptions) -> Self {
        Self::with_limits(engine, text, options, ServeOptions::default())
    }

    fn with_limits(
        engine: FakeEngine,
        text: impl TextModel + 'static,
        options: HttpOptions,
        limits: ServeOptions,
    ) -> Self {
        Self::with_card(engine, text, card(), options, limits)
    }

    /// Drafts, of which every third is wrong.
    fn speculating() -> Self {
        let text = FakeText::new();
        let engine = FakeEngine::new(&text, 4, 1024, 64).drafting(|i| i % 3 != 2);
        let card = ModelCard { speculation: Speculation::native_mtp(), ..card() };
        Self::with_card(engine, text, card, HttpOptions::default(), ServeOptions::default())
    }

    fn with_card(
        engine: FakeEngine,
        text: impl TextModel + 'static,
        card: ModelCard,
        options: HttpOptions,
        limits: ServeOptions,
    ) -> Self {
        let probe = engine.probe();
        let (serve, _thread) = spawn(Box::new(engine), std::sync::Arc::new(text), card, limits).unwrap();
        let metrics = telemetry::local().unwrap().handle();
        Self { router: router(serve.clone(), metrics.clone(), options), serve, probe, metrics }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = bounded(self.router.clone().oneshot(request)).await.unwrap();
        let (head, body) = response.into_parts();
        let body = bounded(body.collect()).await.unwrap().to_bytes();
        let answer = Answer { status: head.status, headers: head.headers, body };
        openapi::assert_described(&method, &path, &answer);
        answer
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    async fn post_bytes(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(post(path, body)).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string()).await
    }

    /// A completion of a body that lacks only what is in `more`: prompt "abc", greedy, 8 tokens.
    async fn complete(&self, more: Value) -> Answer {
        self.post("/v1/completions", &request(more)).await
    }

    /// A chat completion of a body that lacks only what is in `more`: one message "abc", greedy, 8 tokens.
    async fn chat(&self, more: Value) -> Answer {
        self.post("/v1/chat/completions", &chat_request(more)).await
    }

    /// Whether the server still does its work.
    async fn assert_alive(&self) {
        let answer = self.complete(json!({})).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
}

/// `{"prompt":"abc","temperature":0,"max_tokens":8}` with `more` laid over it.
fn request(more: Value) -> Value {
    let mut body = json!({"prompt": "abc", "temperature": 0, "max_tokens": 8});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// As [`request`], for chat.
fn chat_request(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "abc"}], "temperature": 0, "max_tokens": 8});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header(header::CONTENT_TYPE, "application/json").body(body.into()).unwrap()
}

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("the test hangs")
}

/// Waits, without sleeping, until `done` holds.
async fn until(mut done: impl FnMut() -> bool) {
    bounded(async {
        while !done() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The body with ids and times replaced.
    fn redacted(&self) -> Value {
        redact(self.json())
    }

    fn text(&self) -> String {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        self.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Payloads of the events; comments left out. Every line of the body must be one of the two.
    fn events(&self) -> Vec<String> {
        let body = std::str::from_utf8(&self.body).unwrap();
        assert!(body.ends_with("\n\n"), "{body}");
        let frames = body.split("\n\n").filter(|frame| !frame.is_empty());
        let events = frames.filter_map(|frame| match frame.strip_prefix("data: ") {
            Some(payload) => {
                assert!(!payload.contains('\n'), "{frame}");
                Some(payload.to_owned())
            }
            None => {
                assert_eq!(frame, ": ping");
                None
            }
        });
        events.collect()
    }

    /// The chunks before `[DONE]`, which must be there.
    fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        assert_eq!(self.header("content-type"), "text/event-stream");
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The error envelope, checked for shape: status, code, param, message.
    fn error(&self) -> (u16, String, String, String) {
        assert!(self.header("content-type").starts_with("application/json"), "{self:?}");
        let body = self.json();
        let error = &body["error"];
        let word = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        assert!(!word("message").is_empty() && !word("type").is_empty(), "{body}");
        assert!(word("message").chars().count() <= 501, "{body}");
        (self.status.as_u16(), word("code"), word("param"), word("message"))
    }

    fn assert_error(&self, status: u16, code: &str, param: &str) {
        let (got_status, got_code, got_param, message) = self.error();
        assert_eq!((got_status, got_code.as_str(), got_param.as_str()), (status, code, param), "{message}");
    }
}

/// Joined text of choice `index` in a stream.
fn joined(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    choices.filter(|choice| choice["index"] == index).map(|choice| choice["text"].as_str().unwrap()).collect()
}

/// Joined content of choice `index` in a chat stream.
fn joined_content(chunks: &[Value], index: u64) -> String {
    joined_delta(chunks, index, "content")
}

/// The same of another field of the deltas.
fn joined_delta(chunks: &[Value], index: u64, field: &str) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    choices.filter(|choice| choice["index"] == index).filter_map(|choice| choice["delta"][field].as_str()).collect()
}

/// Calls in all choices, whole or in chunks.
fn calls(choices: &mut Value) -> impl Iterator<Item = &mut Value> {
    let choices = choices.as_array_mut().into_iter().flatten();
    let holders = choices.flat_map(|choice| choice.as_object_mut().unwrap().iter_mut());
    let holders = holders.filter(|(name, _)| matches!(name.as_str(), "message" | "delta"));
    holders.filter_map(|(_, holder)| holder.get_mut("tool_calls")?.as_array_mut()).flatten()
}

/// Replaces what differs from run to run.
fn redact(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        for (name, value) in object.iter_mut() {
            match name.as_str() {
                "id" if value.as_str().is_some_and(|id| id.starts_with("cmpl-") || id.starts_with("chatcmpl-")) => {
                    *value = "[id]".into()
                }
                "created" => *value = "[created]".into(),
                "system_fingerprint" => *value = "[fingerprint]".into(),
                "choices" => {
                    for call in calls(value) {
                        assert!(call["id"].as_str().is_none_or(|id| id.starts_with("call_")));
                        if call.get("id").is_some() {
                            call["id"] = "[call]".into();
                        }
                    }
                }
                "timings" => {
                    for (_, time) in value.as_object_mut().unwrap() {
                        assert!(time.as_f64().unwrap() >= 0.0);
                        *time = "[time]".into();
                    }
                }
                _ => {}
            }
        }
    }
    value
}
