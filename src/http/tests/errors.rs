//! Error answers, request ids, and routes that do not exist.

use super::*;
use crate::{http::openai::UNSUPPORTED, serve::testing::Fault};

#[tokio::test]
async fn unknown_routes_and_methods_have_the_envelope() {
    let app = App::new();
    app.get("/v1/nothing").await.assert_error(404, "not_found", "");
    app.get("/").await.assert_error(404, "not_found", "");
    let answer = app.get("/v1/completions").await;
    answer.assert_error(405, "method_not_allowed", "");
    assert_eq!(answer.header("allow"), "POST");
    app.post("/metrics", &json!({})).await.assert_error(405, "method_not_allowed", "");
    let delete = Request::delete("/v1/models/fake").body(Body::empty()).unwrap();
    app.send(delete).await.assert_error(405, "method_not_allowed", "");
}

/// Endpoints that are not there say what is, whatever the body.
#[tokio::test]
async fn unsupported_endpoints_say_so() {
    let app = App::new();
    for path in UNSUPPORTED {
        let path = path.replace("{*rest}", "speech");
        let answer = app.post_bytes(&path, "not json").await;
        answer.assert_error(404, "not_found", "");
        let message = answer.error().3;
        assert!(message.contains("not supported") && message.contains("POST /v1/completions"), "{message}");
    }
}

#[tokio::test]
async fn models() {
    let app = App::new();
    insta::assert_json_snapshot!(app.get("/v1/models").await.json());
    let one = app.get("/v1/models/fake").await;
    assert_eq!(one.json()["id"], "fake");
    app.get("/v1/models/other").await.assert_error(404, "model_not_found", "model");
    app.get("/v1/models/org/repo").await.assert_error(404, "model_not_found", "model");
}

#[tokio::test]
async fn request_ids_are_echoed_or_minted() {
    let app = App::new();
    let with_id = async |id: &[u8]| {
        let mut request = Request::get("/v1/models").body(Body::empty()).unwrap();
        request.headers_mut().insert("x-request-id", axum::http::HeaderValue::from_bytes(id).unwrap());
        app.send(request).await.header("x-request-id").to_owned()
    };
    assert_eq!(with_id(b"Abc-1.2_3:4").await, "Abc-1.2_3:4");
    for bad in [b"a b".as_slice(), b"\"quoted\"", b"caf\xc3\xa9", &[b'x'; 129], b""] {
        let minted = with_id(bad).await;
        assert_eq!(minted.len(), 32, "{minted}");
    }
    for path in ["/livez", "/metrics", "/nothing", "/v1/models"] {
        assert_eq!(app.get(path).await.header("x-request-id").len(), 32, "{path}");
    }
}

/// An engine fault is a 500; one that comes after the stream began is an event.
#[tokio::test]
async fn engine_faults() {
    let app = App::new();
    app.probe.inject(Fault::Engine);
    app.complete(json!({})).await.assert_error(500, "internal_error", "");
}

/// A full queue is a 429 that says when to come back; nothing of the refused request is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_a_429() {
    let text = FakeText::new();
    let (engine, gate) = FakeEngine::new(&text, 1, 64, 64).gated();
    let limits = ServeOptions { max_queue: Some(1), ..ServeOptions::default() };
    let app = App::with_limits(engine, text, HttpOptions::default(), limits);
    let router = app.router.clone();
    let running = tokio::spawn(router.oneshot(post("/v1/completions", request(json!({})).to_string())));
    until(|| app.serve.totals().started == 1).await;
    // Two choices do not fit any more, and so none of them runs.
    let answer = app.complete(json!({"n": 2})).await;
    answer.assert_error(429, "queue_full", "");
    assert_eq!(answer.header("retry-after"), "1");
    drop(gate);
    assert_eq!(bounded(running).await.unwrap().unwrap().status(), StatusCode::OK);
    app.assert_alive().await;
}

#[tokio::test]
async fn snapshots_of_error_bodies() {
    let app = App::new();
    let bodies = [
        ("not json", "{".to_owned()),
        ("wrong type", json!({"prompt": "a", "max_tokens": "7"}).to_string()),
        ("out of range", json!({"prompt": "a", "temperature": 3}).to_string()),
        ("unsupported", json!({"prompt": "a", "suffix": "b"}).to_string()),
        ("unknown model", json!({"prompt": "a", "model": "b"}).to_string()),
        ("token outside", json!({"prompt": [1, 258]}).to_string()),
        ("mixed", json!({"prompt": [1, "a"]}).to_string()),
        ("too long", json!({"prompt": vec![1; 256]}).to_string()),
    ];
    let mut shown = serde_json::Map::new();
    for (name, body) in bodies {
        let answer = app.post_bytes("/v1/completions", body).await;
        shown.insert(name.to_owned(), json!([answer.status.as_u16(), answer.json()]));
    }
    insta::assert_json_snapshot!(shown);
}
