//! The document at `/openapi.json` against the server: what is described is served, and every answer of every router test
//! is as described.

use std::sync::LazyLock;

use axum::http::Method;

use super::{schema::fault, *};
use crate::http::{
    openapi::document,
    routes::{API, PROBES},
};

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// The operation that serves `path`, and its description.
fn described(method: &Method, path: &str) -> Option<&'static Value> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let operations =
        paths.get(path).or_else(|| paths.get("/v1/models/{id}").filter(|_| path.starts_with("/v1/models/")))?;
    operations.get(method.as_str().to_ascii_lowercase())
}

fn assert_is(name_or_schema: &Value, value: &Value) {
    let why = fault(&DOCUMENT, name_or_schema, value);
    assert_eq!(why, None, "src/http/openapi/answers.json does not describe this answer");
}

/// Status, media type and body are described; a body of events event by event. Errors of what is not there are errors all
/// the same.
pub(super) fn assert_described(method: &Method, path: &str, answer: &Answer) {
    if [Method::HEAD, Method::OPTIONS].contains(method) {
        return;
    }
    let error = json!({"$ref": "#/components/schemas/Error"});
    let Some(operation) = described(method, path) else {
        assert!(matches!(answer.status.as_u16(), 401 | 404 | 405), "{method} {path} is not described: {answer:?}");
        return assert_is(&error, &answer.json());
    };
    let content = &operation["responses"][answer.status.as_str()]["content"];
    let media_type = answer.header("content-type").split(';').next().unwrap();
    let described = content.get(media_type).unwrap_or_else(|| panic!("{method} {path}: not described: {answer:?}"));
    match media_type {
        "application/json" => assert_is(&described["schema"], &answer.json()),
        "text/event-stream" => {
            for event in answer.events().iter().filter(|event| *event != "[DONE]") {
                let event: Value = serde_json::from_str(event).unwrap();
                let schema = if event.get("error").is_some() { &error } else { &described["x-event-data"] };
                assert_is(schema, &event);
            }
        }
        other => assert_eq!(other, "text/plain"),
    }
}

#[tokio::test]
async fn the_document_is_served() {
    let answer = App::new().get("/openapi.json").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.json(), *DOCUMENT);
    assert_eq!(answer.json()["openapi"], "3.1.0");
}

/// Every operation of the router is described, and what is described is there: the table is the only way into both.
#[tokio::test]
async fn what_is_described_is_served_and_the_other_way_round() {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let described = paths.iter().flat_map(|(path, operations)| {
        let verbs = operations.as_object().unwrap().keys();
        verbs.map(move |verb| (verb.to_ascii_uppercase(), path.clone()))
    });
    let served = API.iter().chain(PROBES).map(|operation| (operation.verb().to_owned(), operation.path().to_owned()));
    assert_eq!(described.collect::<Vec<_>>(), served.collect::<Vec<_>>());

    let app = App::new();
    for operation in API.iter().chain(PROBES) {
        let path = operation.path().replace("{id}", "fake");
        let of = |verb: &str| Request::builder().method(verb).uri(&path).body(Body::from("{}")).unwrap();
        let answer = app.send(of(operation.verb())).await;
        let expected = if operation.body.is_some() { 415 } else { 200 };
        assert_eq!(answer.status.as_u16(), expected, "{path}: {answer:?}");
        app.send(of("DELETE")).await.assert_error(405, "method_not_allowed", "");
    }
}

/// Each field of each table is there, null allowed unless it is required, with a sample that fits.
#[test]
fn request_bodies_have_the_fields_of_the_tables() {
    for operation in API {
        let Some(fields) = operation.body else { continue };
        let body = &DOCUMENT["paths"][operation.path()]["post"]["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(body["properties"].as_object().unwrap().len(), fields.len());
        for field in fields {
            let schema = &body["properties"][field.name];
            assert_eq!(fault(&DOCUMENT, schema, &serde_json::from_str(field.good).unwrap()), None);
            let required = body["required"].as_array().unwrap().contains(&field.name.into());
            assert_eq!(fault(&DOCUMENT, schema, &Value::Null).is_some(), required, "{}", field.name);
        }
    }
}

/// References lead somewhere, and every schema of an answer is used.
#[test]
fn references_and_schemas_are_the_same_set() {
    fn references(value: &Value, found: &mut std::collections::BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(target)) = object.get("$ref") {
                    found.insert(target.trim_start_matches("#/components/schemas/").to_owned());
                }
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let mut found = Default::default();
    references(&DOCUMENT, &mut found);
    let schemas = DOCUMENT["components"]["schemas"].as_object().unwrap();
    assert_eq!(found, schemas.keys().cloned().collect());
}
