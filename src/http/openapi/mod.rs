//! `GET /openapi.json`: an OpenAPI 3.1 document, made from the tables that the server itself works by.
//!
//! Paths come from [`routes`], request bodies from the field tables, errors from [`ErrorCode`]. Only the schemas of
//! answers are written by hand, in `answers.json`; the router tests hold every answer against them.

use std::sync::LazyLock;

use axum::{
    http::{HeaderValue, header},
    response::IntoResponse,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    error::ErrorCode,
    fields::{Effect, Field},
    routes::{self, Answer, Operation},
};
use crate::telemetry::metrics::VERSION;

/// Schemas of answers by name.
const ANSWERS: &str = include_str!("answers.json");

/// The document as it is sent.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());

pub(super) async fn show() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT.clone())
}

/// The whole document.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for (operations, open) in [(routes::API, false), (routes::PROBES, true)] {
        for operation in operations {
            let path = paths.entry(operation.path()).or_insert_with(|| json!({}));
            path[operation.verb().to_ascii_lowercase()] = described(operation, open);
        }
    }
    json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "skippy-stage",
            "version": VERSION,
            "description": "An inference server with OpenAI's API. In request bodies null means absent, unknown fields are ignored, and an \
                            integer has no fraction, not even `.0`. \
                            Keys are wanted only where the operator has set some.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"header": []}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    })
}

fn described(operation: &Operation, open: bool) -> Value {
    let path = operation.path();
    let name: String = path
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|part| !part.is_empty())
        .fold(operation.verb().to_ascii_lowercase(), |name, part| name + "_" + part);
    let mut described = json!({"operationId": name, "summary": operation.summary, "responses": responses(operation)});
    if open {
        described["security"] = json!([]);
    }
    if path.ends_with("{id}") {
        described["parameters"] =
            json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}]);
    }
    if let Some(fields) = operation.body {
        let body = request(fields);
        described["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": body}}});
    }
    described
}

/// The schema of a request body with these fields.
fn request(fields: &[Field]) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in fields {
        let mut schema = json_of(field.schema);
        if field.default == "required" {
            required.push(field.name);
        } else {
            schema = json!({"anyOf": [schema, {"type": "null"}]});
        }
        schema["description"] = match field.effect {
            Effect::Works(words) => format!("{words} Default: {}.", field.default),
            Effect::Refused(words) => format!("Refused with 400. {words}"),
        }
        .into();
        schema["examples"] = json!([json_of(field.good)]);
        properties.insert(field.name.to_owned(), schema);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// Tables hold valid JSON, which the tests see to.
fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn responses(operation: &Operation) -> Value {
    let json_schema = |name: &str| json!({"application/json": {"schema": reference(name)}});
    let ok = match operation.answer {
        Answer::Json(name) | Answer::Probe(name) => json_schema(name),
        Answer::JsonOrEvents(whole, chunk) => {
            let mut content = json_schema(whole);
            content["text/event-stream"] = json!({
                "schema": {"type": "string"},
                "x-event-data": reference(chunk),
            });
            content
        }
        Answer::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
    };
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({"description": "All went well.", "content": ok}));
    if let Answer::Probe(name) = operation.answer {
        responses.insert("503".to_owned(), json!({"description": "Not so.", "content": json_schema(name)}));
    }
    for code in ErrorCode::ALL.into_iter().filter(|code| may_answer(operation, *code)) {
        let row = code.row();
        let entry = responses
            .entry(row.status.to_string())
            .or_insert_with(|| json!({"description": "", "content": json_schema("Error")}));
        let before = entry["description"].as_str().filter(|words| !words.is_empty());
        let words = before.map_or(format!("`{}`", row.code), |before| format!("{before}, `{}`", row.code));
        entry["description"] = words.into();
        if row.retry_after.is_some() {
            entry["headers"] = json!({"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}});
        }
    }
    responses.into()
}

/// Whether `operation` may be answered with `code`.
fn may_answer(operation: &Operation, code: ErrorCode) -> bool {
    use ErrorCode as C;
    let (body, generates, probe) = (operation.body.is_some(), operation.generates, operation.route.is_none());
    match code {
        C::JsonParse | C::InvalidValue | C::UnsupportedParameter | C::TooLarge | C::MediaType => body,
        C::ModelNotFound => generates || operation.pattern.contains('{'),
        C::ContextLength | C::QueueFull | C::Draining | C::Deadline | C::StageUnavailable => generates,
        C::InvalidApiKey | C::Loading | C::Internal => !probe,
        // Other paths and other methods.
        C::NotFound | C::MethodNotAllowed => false,
    }
}

fn schemas() -> Value {
    let mut schemas = json_of(ANSWERS);
    let all = |of: fn(ErrorCode) -> &'static str| {
        let mut all: Vec<&str> = ErrorCode::ALL.into_iter().map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    schemas["Error"] = json!({
        "type": "object",
        "description": "Every error, and the event that ends a stream which fails.",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"type": "string", "maxLength": 501},
                    "type": {"enum": all(|code| code.row().kind)},
                    "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "code": {"enum": all(|code| code.row().code)},
                    "n_prompt_tokens": {"type": "integer", "minimum": 0},
                    "n_ctx": {"type": "integer", "minimum": 0},
                },
                "required": ["message", "type", "param", "code"],
                "additionalProperties": false,
            },
        },
        "required": ["error"],
        "additionalProperties": false,
    });
    schemas
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}
