//! `GET /v1/policy` and `POST /v1/policy/explain`.

use super::*;
use crate::{
    http::policy::{EXPLAIN_FIELDS, ExplainRequest},
    policy::{Resolver, ResolverConfig},
    serve::ModelCard,
};

const EXPLAIN: &str = "/v1/policy/explain";

/// A server whose model has this resolver.
fn app(policy: Option<Resolver>) -> App {
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 4, 1024, 64);
    let probe = engine.probe();
    let card = ModelCard { policy: policy.map(Into::into), ..card() };
    let (serve, _thread) = spawn(Box::new(engine), std::sync::Arc::new(text), card, ServeOptions::default()).unwrap();
    let metrics = telemetry::local().unwrap().handle();
    App { router: router(serve.clone(), metrics.clone(), HttpOptions::default()), serve, probe, metrics }
}

fn glm() -> App {
    app(Some(Resolver::new(ResolverConfig { top_k: Some(64), ..ResolverConfig::default() })))
}

fn question(more: Value) -> Value {
    let mut body = json!({"phase": "decode", "n_tokens": 2, "n_kv": 100});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn the_contract_is_that_of_the_resolver() {
    let answer = glm().get("/v1/policy").await;
    assert_eq!(answer.status, StatusCode::OK);
    let resolver = Resolver::new(ResolverConfig { top_k: Some(64), ..ResolverConfig::default() });
    assert_eq!(answer.json(), serde_json::to_value(resolver.contract()).unwrap());
}

#[tokio::test]
async fn a_decision_is_explained() {
    let app = glm();
    let ask = async |more| app.post(EXPLAIN, &question(more)).await.json();
    let plain = ask(json!({})).await;
    assert_eq!((&plain["selected"], &plain["reason"]), (&json!("compact-flash"), &json!("built_in_default")));
    let covered = ask(json!({"n_kv": 64})).await;
    assert_eq!((&covered["selected"], &covered["reason"]), (&json!("dense"), &json!("top_k_covers_kv")));
    let cuda = ask(json!({"path": "direct-sparse", "backend": "cuda"})).await;
    assert_eq!((&cuda["backend"], &cuda["reason"]), (&json!("cuda"), &json!("backend_unsupported")));
    assert_eq!(ask(json!({"phase": "prefill", "n_tokens": 2049, "n_kv": 2049})).await["phase"], "long_prefill");
    assert!(plain["words"].as_str().unwrap().contains("compact-flash"));
    assert_eq!(plain["candidates"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn every_field_is_documented_and_checked() {
    let names: Vec<&str> = EXPLAIN_FIELDS.iter().map(|field| field.name).collect();
    assert_eq!(names, ExplainRequest::FIELDS);
    for app in [glm(), app(None)] {
        for field in EXPLAIN_FIELDS {
            let with = |json: &str| question(json!({field.name: serde_json::from_str::<Value>(json).unwrap()}));
            assert_eq!(app.post(EXPLAIN, &with(field.good)).await.status, StatusCode::OK, "{}", field.name);
            for bad in field.bad {
                app.post(EXPLAIN, &with(bad)).await.assert_error(400, "invalid_value", field.name);
            }
            let absent = app.post(EXPLAIN, &with("null")).await;
            match field.default {
                "required" => absent.assert_error(400, "invalid_value", field.name),
                _ => assert_eq!(absent.status, StatusCode::OK),
            }
        }
    }
}

#[tokio::test]
async fn an_engine_without_a_choice_says_so() {
    let app = app(None);
    for answer in [app.get("/v1/policy").await, app.post(EXPLAIN, &question(json!({}))).await] {
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.json()["fixed_by_engine"], true);
        assert_eq!(answer.json()["architecture"], "fake");
    }
    let forced = app.complete(json!({"attention_path": "dense"})).await;
    forced.assert_error(400, "unsupported_parameter", "attention_path");
}
