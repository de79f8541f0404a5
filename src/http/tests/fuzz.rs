//! Thousands of bodies that nobody meant: never a 5xx, and the next request is served.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::*;
use crate::http::{
    fields::Field,
    routes::{API, Operation},
};

/// Any small JSON value.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-300i64..300).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-3.0f64..3.0).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// What every body has, unless it is changed: the required fields, and a short answer where there is one.
fn usual(fields: &[Field]) -> Value {
    let mut body = json!({});
    for field in fields {
        match field.name {
            "temperature" => body["temperature"] = 0.into(),
            "max_tokens" => body["max_tokens"] = 8.into(),
            name if field.default == "required" => body[name] = serde_json::from_str(field.good).unwrap(),
            _ => {}
        }
    }
    body
}

/// A request with good, bad and random values in random fields.
fn any_request(fields: &'static [Field]) -> impl Strategy<Value = Vec<u8>> {
    let field = (0..fields.len()).prop_flat_map(|i| {
        let samples: Vec<&str> = fields[i].bad.iter().copied().chain([fields[i].good; 6]).collect();
        let sample = prop::sample::select(samples).prop_map(|json| serde_json::from_str(json).unwrap());
        (Just(fields[i].name), prop_oneof![3 => sample, 1 => any_json()])
    });
    prop::collection::vec(field, 0..6).prop_map(|changed| {
        let mut body = usual(fields);
        for (name, value) in changed {
            body[name] = value;
        }
        body.to_string().into_bytes()
    })
}

/// Its bytes, now and then cut or changed.
fn any_body(fields: &'static [Field]) -> impl Strategy<Value = Vec<u8>> {
    let broken =
        (any_request(fields), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut body, place, byte)| {
            let place = place.index(body.len());
            match byte % 3 {
                0 => body.truncate(place),
                1 => body[place] = byte,
                _ => body.insert(place, byte),
            }
            body
        });
    prop_oneof![
        6 => any_request(fields),
        3 => broken,
        1 => any_json().prop_map(|json| json.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ]
}

/// Sends `n` bodies to one operation; how often each status came.
async fn storm(app: &App, operation: &Operation, n: u32) -> std::collections::BTreeMap<u16, u32> {
    let mut runner = TestRunner::deterministic();
    let bodies = any_body(operation.body.unwrap());
    let mut seen = std::collections::BTreeMap::new();
    for i in 0..n {
        let body = bodies.new_tree(&mut runner).unwrap().current();
        let answer = app.post_bytes(operation.path(), body.clone()).await;
        let shown = String::from_utf8_lossy(&body);
        assert!(answer.status.as_u16() < 500, "{}: {shown}: {answer:?}", operation.path());
        if answer.status != StatusCode::OK {
            let (status, code, _, message) = answer.error();
            assert!(matches!(status, 400 | 404) || code == "queue_full", "{shown}: {status} {message}");
        } else if answer.header("content-type") == "text/event-stream" {
            answer.chunks();
        }
        *seen.entry(answer.status.as_u16()).or_insert(0) += 1;
        if i % 100 == 0 {
            app.assert_alive().await;
        }
    }
    seen
}

/// Every answer is held against the document at `/openapi.json` on the way, see [`openapi`].
#[tokio::test]
async fn ten_thousand_bodies_never_give_a_5xx() {
    let app = App::new();
    let mut sent = 0;
    for operation in API.iter().filter(|operation| operation.body.is_some()) {
        let n = if operation.generates { 4000 } else { 700 };
        sent += n;
        let seen = storm(&app, operation, n).await;
        // The bodies must reach all the way down now and then for this to mean anything.
        assert!(seen[&200] > n / 10 && seen[&400] > n / 4, "{}: {seen:?}", operation.path());
    }
    assert!(sent >= 10_000, "{sent}");
    let status = app.serve.status();
    assert_eq!((status.lanes_busy, status.queued), (0, 0));
}
