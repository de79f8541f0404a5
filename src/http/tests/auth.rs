//! API keys and pages of other origins.

use super::*;
use crate::http::{ApiKeys, routes};

fn locked(options: HttpOptions) -> App {
    let text = FakeText::new();
    let api_keys = ApiKeys::new(["key-one", "key-two"]).unwrap();
    App::with(FakeEngine::new(&text, 4, 1024, 64), text, HttpOptions { api_keys, ..options })
}

fn with_headers(mut request: Request<Body>, headers: &[(&'static str, &str)]) -> Request<Body> {
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn without_a_key_there_are_probes_and_metrics_only() {
    let app = locked(HttpOptions::default());
    for operation in routes::PROBES {
        assert_eq!(app.get(operation.path()).await.status, StatusCode::OK, "{}", operation.path());
    }
    for operation in routes::API {
        let request = Request::builder().method(operation.verb()).uri(operation.path().replace("{id}", "fake"));
        let answer = app.send(request.body(Body::empty()).unwrap()).await;
        answer.assert_error(401, "invalid_api_key", "");
        assert_eq!(answer.json()["error"]["type"], "authentication_error");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert_eq!(answer.header("x-request-id").len(), 32);
    }
    // Nothing is told of what is there and what is not.
    app.get("/v1/nothing").await.assert_error(401, "invalid_api_key", "");
    app.get("/v1/embeddings").await.assert_error(401, "invalid_api_key", "");
}

#[tokio::test]
async fn every_key_opens_in_either_header() {
    let app = locked(HttpOptions::default());
    for (name, value, status) in [
        ("authorization", "Bearer key-one", 200),
        ("authorization", "Bearer key-two", 200),
        ("x-api-key", "key-two", 200),
        ("authorization", "Bearer key-three", 401),
        ("x-api-key", "key", 401),
    ] {
        let request = with_headers(post("/v1/completions", request(json!({})).to_string()), &[(name, value)]);
        let answer = app.send(request).await;
        assert_eq!(answer.status.as_u16(), status, "{name}: {value}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("key-"), "{answer:?}");
    }
}

/// A body that nobody may send is not read either.
#[tokio::test]
async fn a_refused_body_is_not_read() {
    let app = locked(HttpOptions::default());
    app.send(post("/v1/completions", never())).await.assert_error(401, "invalid_api_key", "");
}

/// A body that never comes.
fn never() -> Body {
    Body::from_stream(tokio_stream::pending::<Result<Bytes, std::convert::Infallible>>())
}

fn preflight(origin: &str) -> Request<Body> {
    let asked = "authorization,content-type,x-stainless-os";
    let headers =
        [("origin", origin), ("access-control-request-method", "POST"), ("access-control-request-headers", asked)];
    with_headers(Request::options("/v1/completions").body(Body::empty()).unwrap(), &headers)
}

#[tokio::test]
async fn other_origins_are_off_by_default() {
    let app = App::new();
    let answer = app.send(preflight("https://a.example")).await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    let request =
        with_headers(Request::get("/v1/models").body(Body::empty()).unwrap(), &[("origin", "https://a.example")]);
    for answer in [answer, app.send(request).await] {
        assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control-")), "{answer:?}");
    }
}

/// Browsers send no key with the question whether they may: it must be answered before keys are looked at.
#[tokio::test]
async fn named_origins_may_ask_without_a_key() {
    let cors_origins = vec!["https://a.example".parse().unwrap(), "http://localhost:3000".parse().unwrap()];
    let app = locked(HttpOptions { cors_origins, ..HttpOptions::default() });
    for origin in ["https://a.example", "http://localhost:3000"] {
        let answer = app.send(preflight(origin)).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::OK, origin));
        assert_eq!(answer.header("access-control-allow-headers"), "authorization,content-type,x-stainless-os");
        assert_eq!(answer.header("access-control-allow-methods"), "GET,POST");
        assert_eq!(answer.header("access-control-max-age"), "600");
        assert!(!answer.headers.contains_key("access-control-allow-credentials"));
    }
    assert_eq!(app.send(preflight("https://b.example")).await.header("access-control-allow-origin"), "");
    // An error must be readable for the page too.
    let request = with_headers(post("/v1/completions", "{}"), &[("origin", "https://a.example")]);
    let answer = app.send(request).await;
    answer.assert_error(401, "invalid_api_key", "");
    assert_eq!(answer.header("access-control-allow-origin"), "https://a.example");
    assert!(answer.header("access-control-expose-headers").contains("x-request-id"));
}

#[tokio::test]
async fn any_origin_when_asked_for() {
    let cors_origins = vec!["*".parse().unwrap()];
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 4, 1024, 64);
    let app = App::with(engine, text, HttpOptions { cors_origins, ..HttpOptions::default() });
    assert_eq!(app.send(preflight("https://c.example")).await.header("access-control-allow-origin"), "*");
}
