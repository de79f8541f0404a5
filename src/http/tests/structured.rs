//! Formats and grammars, on both endpoints.

use super::*;
use crate::chat::{Templates, testing};

const PATHS: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];

fn body(path: &str, more: Value) -> Value {
    if path == PATHS[0] { request(more) } else { chat_request(more) }
}

fn said(answer: &Answer) -> String {
    let choice = &answer.json()["choices"][0];
    choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": false,
    })
}

#[tokio::test]
async fn answers_are_what_the_schema_says() {
    let app = App::new();
    let formats = [
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema(), "strict": true}}),
        json!({"type": "json_schema", "json_schema": {"schema": schema(), "strict": false}}),
        json!({"type": "json_object", "schema": schema()}),
    ];
    for path in PATHS {
        for format in &formats {
            for seed in 0..4 {
                let more = json!({"response_format": format, "max_tokens": 150, "temperature": 1, "seed": seed});
                let answer = app.post(path, &body(path, more)).await;
                let value: Value = serde_json::from_str(&said(&answer)).unwrap_or_else(|_| panic!("{answer:?}"));
                assert!(["x", "yy"].contains(&value["a"].as_str().unwrap()) && value["b"].is_boolean());
                assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
            }
        }
        let text = app.post(path, &body(path, json!({"response_format": {"type": "text"}}))).await;
        assert_eq!(said(&text), said(&app.post(path, &body(path, json!({}))).await));
    }
}

/// llama.cpp users send GBNF, others Lark.
#[tokio::test]
async fn grammars_in_both_notations() {
    let app = App::new();
    for path in PATHS {
        let lark = app.post(path, &body(path, json!({"grammar": "start: \"yes\" | \"no\""}))).await;
        assert!(["yes", "no"].contains(&said(&lark).as_str()), "{lark:?}");
        for stream in [false, true] {
            let more = json!({"grammar": "start: /[a-c]{5}/", "stream": stream});
            let answer = app.post(path, &body(path, more)).await;
            let text = match (stream, path == PATHS[0]) {
                (false, _) => said(&answer),
                (true, true) => joined(&answer.chunks(), 0),
                (true, false) => joined_content(&answer.chunks(), 0),
            };
            assert!(text.len() == 5 && text.bytes().all(|byte| b"abc".contains(&byte)), "{text}");
        }
    }
}

/// llama.cpp#19051, #23463, #24097: a grammar that does not parse and a schema that cannot be enforced are a 400 with the
/// reason, never an unconstrained answer.
#[tokio::test]
async fn llama_cpp_19051_23463_24097_fail_closed() {
    let app = App::new();
    let bad_schemas = [json!({"type": "nothing"}), json!({"$ref": "#/missing"}), json!({"if": {}, "type": "string"})];
    for path in PATHS {
        for grammar in ["start: missing", "root ::= missing", "][", "start: \"a"] {
            let answer = app.post(path, &body(path, json!({"grammar": grammar}))).await;
            answer.assert_error(400, "invalid_value", "grammar");
        }
        for schema in &bad_schemas {
            let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
            let answer = app.post(path, &body(path, json!({"response_format": format}))).await;
            answer.assert_error(400, "invalid_value", "response_format");
        }
        let both = json!({"grammar": "start: \"a\"", "response_format": {"type": "json_object"}});
        app.post(path, &body(path, both)).await.assert_error(400, "invalid_value", "grammar");
    }
    app.assert_alive().await;
}

/// A thought that the prompt opens is thought before the JSON; a grammar of the client's holds from the first token on.
#[tokio::test]
async fn formats_of_models_that_think() {
    let text = FakeText::with_pieces(["hm</think>".as_bytes(), b"\n", b"{}"]);
    let engine = FakeEngine::new(&text, 4, 1024, 64).replying(258..261);
    let chat = Templates::new(Some(testing::THINKING_HERMES), None, "", "").map(std::sync::Arc::new);
    let app =
        App::with_card(engine, text, ModelCard { chat, ..card() }, HttpOptions::default(), ServeOptions::default());
    let thinking =
        json!({"chat_template_kwargs": {"enable_thinking": true}, "response_format": {"type": "json_object"}});
    let message = app.chat(thinking).await.json()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("{}")));
    let verbatim = json!({"chat_template_kwargs": {"enable_thinking": true}, "grammar": "start: \"yes\""});
    let message = app.chat(verbatim).await.json()["choices"][0]["message"].clone();
    assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!("yes")));
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    app.chat(json!({"tools": tools, "grammar": "start: \"a\""})).await.assert_error(400, "invalid_value", "grammar");
}

/// The values of fields that only matter to sampling reach the sampler.
#[tokio::test]
async fn penalties_and_cuts_reach_the_sampler() {
    let app = App::new();
    let text = async |more| app.complete(more).await.text();
    let plain = text(json!({"max_tokens": 120})).await;
    let repeated = plain.chars().enumerate().any(|(i, c)| plain.chars().skip(i + 1).any(|other| other == c));
    assert!(repeated, "{plain} repeats nothing");
    assert_ne!(text(json!({"max_tokens": 120, "repetition_penalty": 100})).await, plain);
    let hot = |name: &str, value: Value| json!({"max_tokens": 24, "temperature": 2, "seed": 1, name: value});
    let base = text(hot("top_k", 0.into())).await;
    assert_ne!(text(hot("typical_p", json!(0.01))).await, base);
    assert_ne!(
        text(json!({"max_tokens": 24, "temperature": 2, "seed": 1, "xtc_probability": 1, "xtc_threshold": 0.001}))
            .await,
        base
    );
    app.complete(json!({"metadata": {"k".repeat(65): "v"}})).await.assert_error(400, "invalid_value", "metadata");
    app.complete(json!({"metadata": {"k": "v".repeat(513)}})).await.assert_error(400, "invalid_value", "metadata");
}
