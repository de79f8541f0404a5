//! Server-sent events: order, errors, pings, clients that leave.

use super::*;
use crate::serve::{FinishReason, testing::Fault};

fn gated(options: HttpOptions) -> (App, crate::serve::testing::Gate) {
    let text = FakeText::new();
    let (engine, gate) = FakeEngine::new(&text, 1, 64, 64).gated();
    (App::with(engine, text, options), gate)
}

/// open-webui#16377, kubeai#283, vllm#2266: deltas, then exactly one finish reason, then usage without choices, then
/// `[DONE]`.
#[tokio::test]
async fn open_webui_16377_kubeai_283_vllm_2266_order_of_chunks() {
    let app = App::replying(&[b"Hello", b" world"]);
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let answer = app.complete(options).await;
    assert_eq!(answer.header("cache-control"), "no-cache");
    assert_eq!(answer.header("x-accel-buffering"), "no");
    let chunks = answer.chunks();
    insta::assert_json_snapshot!(chunks.iter().cloned().map(redact).collect::<Vec<_>>());
    let ids: std::collections::BTreeSet<&str> = chunks.iter().map(|chunk| chunk["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
    let without = app.complete(json!({"stream": true})).await.chunks();
    assert!(without.iter().all(|chunk| chunk.get("usage").is_none()));
}

/// llama.cpp#10914: deltas joined are the answer, with stop strings too.
#[tokio::test]
async fn llama_cpp_10914_deltas_joined_are_the_answer() {
    let app = App::new();
    for more in [json!({}), json!({"stop": ["~~", "q"]}), json!({"max_tokens": 64}), json!({"max_tokens": 0})] {
        let whole = app.complete(more.clone()).await.text();
        let mut streamed = more.clone();
        streamed["stream"] = true.into();
        let chunks = app.complete(streamed).await.chunks();
        assert_eq!(joined(&chunks, 0), whole, "{more}");
        let ends = chunks.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null()).count();
        assert_eq!(ends, 1);
    }
}

/// ferrox#124, #125: characters over several tokens come whole, invalid bytes become U+FFFD once.
#[tokio::test]
async fn ferrox_124_utf8_over_tokens() {
    let app = App::replying(&[b"a\xf0", b"\x9f", b"\x8f", b"\x96b", b"\xff", b"c", b"\xe2\x82"]);
    let whole = app.complete(json!({})).await.text();
    assert_eq!(whole, "a🏖b\u{fffd}c\u{fffd}");
    assert_eq!(joined(&app.complete(json!({"stream": true})).await.chunks(), 0), whole);
}

/// llama-cpp-python#1906: choices of a stream are told apart by index, each ends once.
#[tokio::test]
async fn llama_cpp_python_1906_choices_in_a_stream() {
    let app = App::new();
    let body = json!({"prompt": ["abc", "x"], "n": 2, "temperature": 2, "seed": 9});
    let whole = app.complete(body.clone()).await.json();
    let mut streamed = body;
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let chunks = app.complete(streamed).await.chunks();
    for index in 0..4 {
        assert_eq!(joined(&chunks, index), whole["choices"][index as usize]["text"].as_str().unwrap());
    }
    let ends = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    assert_eq!(ends.filter(|choice| !choice["finish_reason"].is_null()).count(), 4);
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
}

/// llama.cpp#16104: an error in the midst of a stream is a `data` object with `error`, and the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_cpp_16104_an_error_in_the_stream() {
    let (app, gate) = gated(HttpOptions::default());
    let response =
        bounded(app.router.clone().oneshot(post("/v1/completions", request(json!({"stream": true})).to_string())));
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    gate.step();
    gate.batch();
    app.probe.inject(Fault::Engine);
    drop(gate);
    let (head, body) = response.into_parts();
    let body = bounded(body.collect()).await.unwrap().to_bytes();
    let answer = Answer { status: head.status, headers: head.headers, body };
    let events = answer.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "internal_error");
    assert!(events.iter().all(|event| event != "[DONE]"));
    app.assert_alive().await;
}

/// openai-python#2722, llama.cpp PR#24013, copilot-api PR#88: comments while no token comes, never an `id:` and never an
/// empty `data:`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_python_2722_pings_without_ids() {
    let options = HttpOptions { keep_alive: Some(Duration::from_millis(1)), ..HttpOptions::default() };
    let (app, gate) = gated(options);
    let response =
        bounded(app.router.clone().oneshot(post("/v1/completions", request(json!({"stream": true})).to_string())));
    let mut body = response.await.unwrap().into_body();
    for _ in 0..3 {
        let frame = bounded(body.frame()).await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, ": ping\n\n");
    }
    drop(gate);
    let rest = bounded(body.collect()).await.unwrap().to_bytes();
    let rest = std::str::from_utf8(&rest).unwrap();
    for line in rest.lines().filter(|line| !line.is_empty() && *line != ": ping") {
        let payload = line.strip_prefix("data: ").expect(line);
        assert!(payload == "[DONE]" || serde_json::from_str::<Value>(payload).is_ok(), "{line}");
    }
}

/// llama.cpp#13262, #24496: a client that leaves frees its lane within one step; one that leaves the queue never runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_cpp_13262_clients_that_leave() {
    let (app, gate) = gated(HttpOptions::default());
    let stream = || post("/v1/completions", request(json!({"stream": true, "max_tokens": 40})).to_string());
    let running = bounded(app.router.clone().oneshot(stream())).await.unwrap();
    let queued = tokio::spawn(app.router.clone().oneshot(stream()));
    until(|| app.serve.totals().started == 2).await;
    // ik#1929: leaving the queue does not touch the running one.
    queued.abort();
    assert!(bounded(queued).await.unwrap_err().is_cancelled());
    gate.step();
    gate.batch();
    drop(running);
    gate.open();
    until(|| app.serve.totals().finished(FinishReason::Cancelled) == 2).await;
    assert_eq!(app.probe.steps(), 2);
    drop(gate);
    app.assert_alive().await;
}

/// The same for an answer in one piece: the handler is dropped with its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_cpp_11720_a_client_that_leaves_before_the_answer() {
    let (app, gate) = gated(HttpOptions::default());
    let waiting = tokio::spawn(app.router.clone().oneshot(post("/v1/completions", request(json!({})).to_string())));
    gate.step();
    gate.batch();
    waiting.abort();
    assert!(bounded(waiting).await.unwrap_err().is_cancelled());
    gate.open();
    until(|| app.serve.totals().finished(FinishReason::Cancelled) == 1).await;
    drop(gate);
    app.assert_alive().await;
}
