//! Thousands of bodies that nobody meant: never a 5xx, and the next request is served.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::*;
use crate::http::openai::completions::fields::FIELDS;

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

/// A completion request with good, bad and random values in random fields.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let field = (0..FIELDS.len()).prop_flat_map(|i| {
        let samples: Vec<&str> = FIELDS[i].bad.iter().copied().chain([FIELDS[i].good; 6]).collect();
        let sample = prop::sample::select(samples).prop_map(|json| serde_json::from_str(json).unwrap());
        (Just(FIELDS[i].name.to_owned()), prop_oneof![3 => sample, 1 => any_json()])
    });
    let fields = prop::collection::vec(field, 0..6);
    fields.prop_map(|fields| request(Value::Object(fields.into_iter().collect())).to_string().into_bytes())
}

/// Its bytes, now and then cut or changed.
fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let broken = (any_request(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut body, place, byte)| {
        let place = place.index(body.len());
        match byte % 3 {
            0 => body.truncate(place),
            1 => body[place] = byte,
            _ => body.insert(place, byte),
        }
        body
    });
    prop_oneof![
        6 => any_request(),
        3 => broken,
        1 => any_json().prop_map(|json| json.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ]
}

#[tokio::test]
async fn two_thousand_bodies_never_give_a_5xx() {
    let app = App::new();
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeMap::new();
    for i in 0..2000 {
        let body = any_body().new_tree(&mut runner).unwrap().current();
        let answer = app.post_bytes("/v1/completions", body.clone()).await;
        let shown = String::from_utf8_lossy(&body);
        assert!(answer.status.as_u16() < 500, "{shown}: {answer:?}");
        if answer.status != StatusCode::OK {
            let (status, code, _, message) = answer.error();
            assert!(matches!(status, 400 | 404) || code == "queue_full", "{shown}: {status} {message}");
        } else if answer.header("content-type") == "text/event-stream" {
            answer.chunks();
        }
        *seen.entry(answer.status.as_u16()).or_insert(0) += 1;
        if i % 20 == 0 {
            app.assert_alive().await;
        }
    }
    // The bodies must reach all the way down now and then for this to mean anything.
    assert!(seen[&200] > 200 && seen[&400] > 500, "{seen:?}");
}
