//! Tools: what must be called is, what is called comes out in the right shape.

use super::*;
use crate::chat::{Templates, testing};

/// Room for descriptions of tools: 2048 tokens for each request.
fn app(template: &str, pieces: &[&[u8]], controls: &[&str]) -> App {
    let text = FakeText::with_pieces(pieces.iter().copied()).controls(controls);
    let first = crate::serve::testing::FIRST_PIECE;
    let mut engine = FakeEngine::new(&text, 4, 8192, 512);
    if !pieces.is_empty() || !controls.is_empty() {
        engine = engine.replying(first..first + (pieces.len() + controls.len()) as i32);
    }
    let chat = Templates::new(Some(template), None, "<bos>", "<eog>").map(std::sync::Arc::new);
    App::with_card(engine, text, ModelCard { chat, ..card() }, HttpOptions::default(), ServeOptions::default())
}

/// Two tools whose arguments cannot be long.
fn two() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"], "type": "string"}, "hot": {"type": "boolean"}},
        "required": ["city", "hot"],
        "additionalProperties": false,
    });
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": parameters}},
        {"type": "function", "function": {"name": "now", "parameters": none}},
    ])
}

fn with_tools(more: Value) -> Value {
    let mut body = json!({"tools": two(), "max_tokens": 400});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

const HERMES_CALLS: &[&[u8]] = &[
    b"Let me ",
    b"see.\n",
    b"<tool_call>",
    b"\n{\"name\": \"weather\", \"arg",
    b"uments\": {\"city\": \"Os",
    b"lo\", \"hot\": fal",
    b"se}}\n</tool_call>",
    b"\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool",
    b"_call>",
];

/// codex#7517, litellm#33678, dynamo PR#4723: id and name in the first delta of a call, the index in all, 0 and 1 for two.
#[tokio::test]
async fn codex_7517_litellm_33678_golden_calls() {
    let app = app(testing::HERMES, HERMES_CALLS, &[]);
    let whole = app.chat(with_tools(json!({}))).await;
    insta::assert_json_snapshot!(whole.redacted()["choices"]);
    let chunks = app.chat(with_tools(json!({"stream": true}))).await.chunks();
    let choices: Vec<Value> = chunks.iter().cloned().map(|chunk| redact(chunk)["choices"][0].clone()).collect();
    insta::assert_json_snapshot!(choices);
}

/// vllm PR#48852: arguments of a stream joined are those of the answer in one piece, and JSON.
#[tokio::test]
async fn vllm_48852_streamed_arguments() {
    let app = app(testing::HERMES, HERMES_CALLS, &[]);
    let whole = app.chat(with_tools(json!({}))).await.json();
    let chunks = app.chat(with_tools(json!({"stream": true}))).await.chunks();
    let mut calls: Vec<(String, String)> = Vec::new();
    for chunk in &chunks {
        for call in chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if call.get("id").is_some() {
                assert_eq!(index, calls.len());
                calls.push((call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
            }
            calls[index].1.push_str(call["function"]["arguments"].as_str().unwrap());
        }
    }
    let wanted = whole["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(wanted.len(), calls.len());
    for (call, (name, arguments)) in wanted.iter().zip(&calls) {
        assert_eq!(
            (call["function"]["name"].as_str().unwrap(), call["function"]["arguments"].as_str().unwrap()),
            (name.as_str(), arguments.as_str())
        );
        assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object());
    }
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// The names of the calls of an answer, each checked.
fn names(answer: &Value) -> Vec<String> {
    let message = &answer["choices"][0]["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let name = |call: &Value| {
        let function = &call["function"];
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        match function["name"].as_str().unwrap() {
            "weather" => {
                assert!(
                    ["Oslo", "Rome"].contains(&arguments["city"].as_str().unwrap()) && arguments["hot"].is_boolean()
                );
            }
            "now" => assert_eq!(arguments, json!({})),
            other => panic!("{other} is no tool"),
        }
        function["name"].as_str().unwrap().to_owned()
    };
    calls.iter().map(name).collect()
}

/// llama.cpp#26535, vllm#54808, #49712, #50477, #9426: the choice is kept in every format, with a model that would rather
/// say something else; what cannot be enforced is refused.
#[tokio::test]
async fn llama_cpp_26535_vllm_54808_matrix_of_choices() {
    let named = json!({"type": "function", "function": {"name": "now"}});
    let templates = [
        (testing::HERMES, &[][..]),
        (testing::GLM, &[]),
        (testing::LLAMA, &[]),
        (testing::MISTRAL, &[]),
        (testing::MISTRAL_ARGS, &[]),
        (testing::PLAIN, &[]),
        (testing::HERMES, &["<tool_call>", "</tool_call>"]),
        (testing::MISTRAL, &["[TOOL_CALLS]"]),
        (testing::MISTRAL_ARGS, &["[TOOL_CALLS]", "[ARGS]"]),
    ];
    for (template, controls) in templates {
        let text = FakeText::new().controls(controls);
        let engine = FakeEngine::new(&text, 4, 16384, 512);
        let chat = Templates::new(Some(template), None, "<bos>", "<eog>").map(std::sync::Arc::new);
        let card = ModelCard { chat, ..card() };
        let app = App::with_card(engine, text, card, HttpOptions::default(), ServeOptions::default());
        for stream in [false, true] {
            let chat = async |choice: Value| {
                let more = json!({"tool_choice": choice, "parallel_tool_calls": false, "stream": stream});
                app.chat(with_tools(more)).await
            };
            let answer = chat(named.clone()).await;
            if stream {
                let chunks = answer.chunks();
                assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls", "{template}");
                continue;
            }
            let answer = answer.json();
            assert_eq!(names(&answer), ["now"], "{template}: {answer}");
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
            assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);

            let required = chat(json!("required")).await;
            if controls.contains(&"[ARGS]") {
                required.assert_error(400, "unsupported_parameter", "tool_choice");
            } else {
                let required = required.json();
                assert_eq!(names(&required).len(), 1, "{template}: {required}");
            }
            for choice in [json!("none"), json!("auto")] {
                let answer = chat(choice.clone()).await.json();
                assert_eq!(names(&answer).len(), 0, "{template}, {choice}: {answer}");
                assert_eq!(answer["choices"][0]["finish_reason"], "length");
            }
        }
        let missing = json!({"tools": two(), "tool_choice": {"type": "function", "function": {"name": "missing"}}});
        app.chat(missing).await.assert_error(400, "invalid_value", "tool_choice");
        app.chat(json!({"tool_choice": "required"})).await.assert_error(400, "invalid_value", "tool_choice");
    }
}

/// Marks that are control tokens have no text of their own: they are read all the same.
#[tokio::test]
async fn calls_behind_control_tokens() {
    let text = FakeText::with_pieces(["Yes. ".as_bytes(), b" [{\"name\": \"now\", ", b"\"arguments\": {}}]"])
        .controls(&["[TOOL_CALLS]"]);
    let first = crate::serve::testing::FIRST_PIECE;
    let engine = FakeEngine::new(&text, 4, 8192, 512).replying([first, first + 3, first + 1, first + 2]);
    let chat = Templates::new(Some(testing::MISTRAL), None, "<bos>", "<eog>").map(std::sync::Arc::new);
    let app =
        App::with_card(engine, text, ModelCard { chat, ..card() }, HttpOptions::default(), ServeOptions::default());
    let answer = app.chat(with_tools(json!({}))).await.json();
    assert_eq!(names(&answer), ["now"]);
    assert_eq!(answer["choices"][0]["message"]["content"], "Yes.");
    // Strict arguments cannot be promised there.
    let mut strict = two();
    strict[1]["function"]["strict"] = true.into();
    let answer = app.chat(with_tools(json!({"tools": strict}))).await;
    answer.assert_error(400, "unsupported_parameter", "tools");
}

/// A schema that cannot be enforced is no reason to refuse calls that need not be made; those that must be are refused.
#[tokio::test]
async fn schemas_beyond_enforcement() {
    let app =
        app(testing::HERMES, &[b"<tool_call>{\"name\": \"odd\", ", b"\"arguments\": {\"a\": 1}}</tool_call>"], &[]);
    let odd = json!({"type": "object", "properties": {"a": {"type": "integer", "format": "unheard-of", "contains": {"x": 1}, "if": {}}}});
    let tool =
        |strict: bool| json!([{"type": "function", "function": {"name": "odd", "strict": strict, "parameters": odd}}]);
    let answer = app.chat(json!({"tools": tool(false), "max_tokens": 100})).await.json();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}", "{answer}");
    app.chat(json!({"tools": tool(true)})).await.assert_error(400, "invalid_value", "tools");
    app.chat(json!({"tools": tool(false), "tool_choice": "required"})).await.assert_error(
        400,
        "invalid_value",
        "tools",
    );
}

/// A conversation goes on behind a call, in every format.
#[tokio::test]
async fn results_go_back_to_the_model() {
    let messages = json!([
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_x", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\", \"hot\": true}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_x", "content": [{"type": "text", "text": "sunny"}]},
    ]);
    for template in
        [testing::HERMES, testing::GLM, testing::LLAMA, testing::MISTRAL, testing::MISTRAL_ARGS, testing::PLAIN]
    {
        let app = app(template, &[b"It is sunny."], &[]);
        for more in [json!({"messages": messages}), json!({"messages": messages, "tool_choice": "none"})] {
            let answer = app.chat(with_tools(more)).await.json();
            assert_eq!(answer["choices"][0]["message"]["content"], "It is sunny.", "{template}");
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        }
    }
}

/// koboldcpp#1503, llama.cpp#25515: null means absent in tools, calls and choices too.
#[tokio::test]
async fn koboldcpp_1503_nulls_in_tools() {
    let app = app(testing::PLAIN, &[b"Hello"], &[]);
    let call = |more: Value| {
        let mut function = json!({"name": "f", "arguments": "{}"});
        let mut call = json!({"id": "x", "function": function});
        if more.is_null() {
            function["arguments"] = Value::Null;
            call = json!({"id": "x", "type": null, "function": function, "index": null});
        }
        json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "x", "name": null, "content": "b"},
        ])
    };
    let plain = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "messages": call(json!(1))});
    let function = json!({"name": "f", "description": null, "parameters": null, "strict": null});
    let nulls = json!({
        "tools": [{"type": "function", "function": function, "cache_control": null}],
        "messages": call(Value::Null),
        "tool_choice": null,
        "parallel_tool_calls": null,
    });
    assert_eq!(app.chat(nulls).await.redacted(), app.chat(plain).await.redacted());
}

/// A call that the budget cuts off is told as far as it came, and ends with `length`.
#[tokio::test]
async fn a_call_cut_off_by_the_budget() {
    let answer = app(testing::HERMES, HERMES_CALLS, &[]).chat(with_tools(json!({"max_tokens": 5}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!("Let me see.")));
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Os");
}
