//! Chat completions: fields, templates, shapes and streams.

use super::*;
use crate::{
    chat::Templates,
    http::{
        fields::Effect,
        openai::{
            chat::{
                fields::FIELDS,
                types::ChatRequest,
                validate::{Validated, validate},
            },
            params::Params,
        },
    },
    serve::testing::{TEMPLATE, answer},
};

/// A template that knows thoughts, a reasoning effort, and not everybody.
const THINKING: &str = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\
    <{{ m.role }}>{{ m.content.split('</think>')[-1] }}\n{% endfor %}{{ reasoning_effort }}\
    {% if add_generation_prompt %}<assistant>{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}";

fn app_with_template(template: &str, pieces: &[&[u8]]) -> App {
    let text = FakeText::with_pieces(pieces.iter().copied());
    let tokens = crate::serve::testing::FIRST_PIECE..;
    let mut engine = FakeEngine::new(&text, 4, 8192, 64);
    if !pieces.is_empty() {
        engine = engine.replying(tokens.take(pieces.len()));
    }
    let chat = Templates::new(Some(template), None, "<bos>", "<eog>").map(std::sync::Arc::new);
    App::with_card(engine, text, ModelCard { chat, ..card() }, HttpOptions::default(), ServeOptions::default())
}

fn validated(body: Value) -> Validated {
    let templates = Templates::new(Some(THINKING), None, "<bos>", "<eog>").unwrap();
    validate(serde_json::from_value::<ChatRequest>(body).unwrap(), "fake", 258, &templates).unwrap()
}

/// A body in which `field` may take any value: some need others beside them.
fn body_for(field: &str, value: Value) -> Value {
    let mut body = chat_request(json!({"seed": 7}));
    match field {
        "stream_options" => body["stream"] = true.into(),
        "top_logprobs" => body["logprobs"] = true.into(),
        "tool_choice" | "parallel_tool_calls" => {
            body["tools"] = json!([{"type": "function", "function": {"name": "f"}}])
        }
        "tools" => body["tool_choice"] = "auto".into(),
        _ => {}
    }
    body[field] = value;
    body
}

#[test]
fn the_table_lists_exactly_the_fields_that_are_parsed() {
    let mut names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
    let mut parsed = [ChatRequest::FIELDS, Params::FIELDS].concat();
    names.sort_unstable();
    parsed.sort_unstable();
    assert_eq!(names, parsed);
}

/// ocp#470: accepted and ignored is the one thing that no field may be.
#[tokio::test]
async fn ocp_470_every_documented_field_works_or_is_refused() {
    let app = app_with_template(THINKING, &[]);
    for field in FIELDS {
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        let good = app.post("/v1/chat/completions", &body_for(field.name, value(field.good))).await;
        match field.effect {
            Effect::Works(_) => assert_eq!(good.status, StatusCode::OK, "{}: {good:?}", field.name),
            Effect::Refused(_) => good.assert_error(400, "unsupported_parameter", field.name),
        }
        for bad in field.bad {
            let body = body_for(field.name, value(bad));
            let (status, _, param, message) = app.post("/v1/chat/completions", &body).await.error();
            assert_eq!(status, 400, "{} = {bad}: {message}", field.name);
            assert!(param.starts_with(field.name) && message.contains(field.name), "{bad}: {param}: {message}");
        }
    }
    app.assert_alive().await;
}

/// ocp#470: what a field changes in the request as carried out; some accept only what is so anyway.
#[test]
fn ocp_470_every_working_field_has_an_effect() {
    const SO_ANYWAY: [&str; 5] = ["model", "modalities", "store", "service_tier", "prompt_cache_key"];
    for field in FIELDS.iter().filter(|field| matches!(field.effect, Effect::Works(_))) {
        let mut with = body_for(field.name, serde_json::from_str(field.good).unwrap());
        let mut without = with.clone();
        without.as_object_mut().unwrap().remove(field.name);
        if field.name == "messages" {
            (with, without) =
                (chat_request(json!({"messages": [{"role": "user", "content": "x"}]})), chat_request(json!({})));
        }
        let changes = validated(with) != validated(without);
        assert_eq!(changes, !SO_ANYWAY.contains(&field.name), "{}", field.name);
    }
}

/// llama.cpp#25515, vllm#19862, koboldcpp#1503: null means absent, in nested objects too.
#[tokio::test]
async fn llama_cpp_25515_vllm_19862_koboldcpp_1503_null_equals_absent() {
    let app = App::new();
    let without = json!({"messages": [{"role": "user", "content": "abc"}], "seed": 7, "max_completion_tokens": 9});
    let plain = app.post("/v1/chat/completions", &without).await;
    assert_eq!(plain.json()["usage"]["completion_tokens"], 9, "{plain:?}");
    let mut all = without.clone();
    for field in FIELDS.iter().filter(|field| without.get(field.name).is_none()) {
        let mut with = without.clone();
        with[field.name] = Value::Null;
        all[field.name] = Value::Null;
        let answer = app.post("/v1/chat/completions", &with).await;
        assert_eq!(answer.redacted(), plain.redacted(), "{}", field.name);
    }
    all["response_format"] = json!({"type": "text", "json_schema": null, "schema": null});
    all["stream_options"] = Value::Null;
    let nulls = json!({"role": "user", "content": "abc", "name": null, "reasoning_content": null, "refusal": null,
        "tool_calls": null, "tool_call_id": null, "audio": null});
    all["messages"] = json!([nulls]);
    all["chat_template_kwargs"] = json!({"documents": null});
    assert_eq!(app.post("/v1/chat/completions", &all).await.redacted(), plain.redacted());
    let parts = json!([{"type": "text", "text": "abc", "refusal": null, "cache_control": null}]);
    all["messages"][0]["content"] = parts;
    assert_eq!(app.post("/v1/chat/completions", &all).await.redacted(), plain.redacted());
}

/// lmstudio-bug-tracker#377: `messages` as an object is a 400 that names it.
#[tokio::test]
async fn lmstudio_377_messages_as_an_object() {
    let answer = App::new().chat(json!({"messages": {"role": "user", "content": "a"}})).await;
    answer.assert_error(400, "invalid_value", "messages");
}

/// fms-guardrails-orchestrator#297: keys of messages that nobody knows do no harm.
#[tokio::test]
async fn fms_guardrails_orchestrator_297_unknown_keys_of_messages() {
    let app = App::new();
    let plain = app.chat(json!({})).await;
    let message = json!({"role": "user", "content": "abc", "timestamp": 7, "weight": {"deep": [1]}});
    assert_eq!(app.chat(json!({"messages": [message]})).await.redacted(), plain.redacted());
}

/// llama.cpp#8367, langchaingo#667: parts of text are joined, parts of anything else are refused, not dropped.
#[tokio::test]
async fn llama_cpp_8367_langchaingo_667_parts() {
    let app = App::new();
    let plain = app.chat(json!({})).await;
    let content = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]);
    let parts = app.chat(json!({"messages": [{"role": "user", "content": content}]})).await;
    assert_eq!(parts.redacted(), plain.redacted());
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]);
    let answer = app.chat(json!({"messages": [{"role": "user", "content": image}]})).await;
    answer.assert_error(400, "unsupported_parameter", "messages[0].content[1].type");
}

/// The prompt is the template's, with one BOS in front.
#[tokio::test]
async fn the_prompt_is_what_the_template_writes() {
    let app = App::new();
    let messages = json!([
        {"role": "developer", "content": "be"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "you", "name": "me"},
    ]);
    let prompt: Vec<i32> = std::iter::once(256)
        .chain("[system:be][user:hi][assistant:ho][user:you][assistant:".bytes().map(i32::from))
        .collect();
    let wanted: String = answer(&prompt, 8).iter().map(|&token| char::from(token as u8)).collect();
    let got = app.chat(json!({"messages": messages})).await.json();
    assert_eq!(got["choices"][0]["message"]["content"], wanted);
    assert_eq!(got["usage"]["prompt_tokens"], prompt.len());
}

/// llama-cpp-python#1501, vllm PR#55288: a template that writes BOS and a tokenizer that adds it give one.
#[tokio::test]
async fn llama_cpp_python_1501_one_bos() {
    for template in [TEMPLATE.to_owned(), format!("{{{{ bos_token }}}}{TEMPLATE}")] {
        let got = app_with_template(&template, &[b"x"]).chat(json!({})).await.json();
        assert_eq!(got["usage"]["prompt_tokens"], 1 + "[user:abc][assistant:".len(), "{template}");
    }
}

/// A last message of the assistant's is continued: no new answer is opened, and blanks at its end stay.
#[tokio::test]
async fn a_last_message_of_the_assistant_is_continued() {
    let app = App::new();
    let messages = json!([{"role": "user", "content": "abc"}, {"role": "assistant", "content": "ho "}]);
    let prompt: Vec<i32> = std::iter::once(256).chain("[user:abc][assistant:ho ".bytes().map(i32::from)).collect();
    let wanted: String = answer(&prompt, 8).iter().map(|&token| char::from(token as u8)).collect();
    let got = app.chat(json!({"messages": messages})).await.json();
    assert_eq!(got["choices"][0]["message"]["content"], wanted);
}

#[tokio::test]
async fn what_a_template_refuses_is_a_400_in_its_words() {
    let app = app_with_template(THINKING, &[b"x"]);
    let answer = app.chat(json!({"messages": [{"role": "tool", "content": "x"}]})).await;
    assert_eq!(answer.status, StatusCode::OK, "results of tools are written out: {answer:?}");
    let refusing = "{{ raise_exception('not today') }}";
    let answer = app_with_template(refusing, &[b"x"]).chat(json!({})).await;
    answer.assert_error(400, "invalid_value", "messages");
    assert!(answer.error().3.ends_with("refuses this conversation: not today"), "{answer:?}");
    let endless = "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}";
    app_with_template(endless, &[b"x"]).chat(json!({})).await.assert_error(400, "invalid_value", "messages");
}

/// A model without a template, or with one that does not compile, still completes texts.
#[tokio::test]
async fn without_a_template_conversations_are_a_400() {
    for (template, why) in [(None, "has no chat template"), (Some("{% if %}"), "does not compile")] {
        let text = FakeText::new();
        let engine = FakeEngine::new(&text, 1, 64, 64);
        let chat = Templates::new(template, None, "", "").map(std::sync::Arc::new);
        let card = ModelCard { chat, ..card() };
        let app = App::with_card(engine, text, card, HttpOptions::default(), ServeOptions::default());
        let answer = app.chat(json!({})).await;
        answer.assert_error(400, "invalid_value", "messages");
        assert!(answer.error().3.contains(why), "{answer:?}");
        app.assert_alive().await;
    }
}

/// llama.cpp PR#15780: too long a conversation is a 400 with both numbers, also when only the last token does not fit.
#[tokio::test]
async fn llama_cpp_15780_too_long_a_conversation() {
    let app = App::new();
    let fixed = 1 + "[user:][assistant:".len();
    let exact = json!({"messages": [{"role": "user", "content": "x".repeat(256 - fixed)}]});
    let answer = app.chat(exact).await;
    answer.assert_error(400, "context_length_exceeded", "messages");
    let error = &answer.json()["error"];
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(256), &json!(256)));
    let fits = json!({"messages": [{"role": "user", "content": "x".repeat(255 - fixed)}], "max_tokens": null});
    let answer = app.chat(fits).await.json();
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["usage"]["total_tokens"]),
        (&json!("length"), &json!(256))
    );
}

/// Without `max_tokens` an answer may be as long as the context.
#[tokio::test]
async fn without_a_limit_an_answer_ends_with_the_context() {
    let answer = App::new().chat(json!({"max_tokens": null})).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 256);
}

#[tokio::test]
async fn the_plain_answer() {
    let answer = App::replying(&[b"Hello", b" world"]).chat(json!({})).await;
    assert!(answer.json()["id"].as_str().unwrap().starts_with("chatcmpl-"));
    insta::assert_json_snapshot!(answer.redacted());
}

/// open-webui#16377, kubeai#283, vllm#2266: role, deltas, one finish reason, usage without choices, `[DONE]`.
#[tokio::test]
async fn open_webui_16377_kubeai_283_vllm_2266_order_of_chunks() {
    let app = App::replying(&[b"Hello", b" world"]);
    let chunks = app.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).await.chunks();
    insta::assert_json_snapshot!(chunks.iter().cloned().map(redact).collect::<Vec<_>>());
}

/// llama.cpp#10733, #11346, llama-cpp-python#1787: the chat shape of log-probabilities, in one piece and streamed.
#[tokio::test]
async fn llama_cpp_10733_logprobs_golden() {
    let app =
        app_with_template(THINKING, &[b"<think>", b"hm", b"</think>", b"He", b"llo", b"\xf0\x9f", b"\x8f\x96", b"!"]);
    let whole = app.chat(json!({"logprobs": true, "top_logprobs": 2})).await.json();
    let logprobs = &whole["choices"][0]["logprobs"];
    insta::assert_json_snapshot!(answers::rounded(logprobs.clone()));
    let chunks = app.chat(json!({"logprobs": true, "top_logprobs": 2, "stream": true})).await.chunks();
    assert_eq!(joined_content(&chunks, 0), "Hello🏖!");
    let streamed = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    let streamed: Vec<Value> = streamed.flatten().cloned().collect();
    assert_eq!(&Value::from(streamed), &logprobs["content"]);
}

/// vllm#4795, #3179: without alternatives the chosen token is there all the same, and N means N.
#[tokio::test]
async fn vllm_4795_alternatives() {
    let app = App::new();
    for n in [0, 1, 20] {
        let answer = app.chat(json!({"logprobs": true, "top_logprobs": n})).await.json();
        let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
        assert_eq!(content.len(), 8);
        for token in content {
            assert!(token["logprob"].as_f64().unwrap() <= 0.0);
            assert_eq!(token["top_logprobs"].as_array().unwrap().len(), n);
        }
    }
    let none = app.chat(json!({"logprobs": true})).await.json();
    assert_eq!(none["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    assert_eq!(app.chat(json!({})).await.json()["choices"][0]["logprobs"], Value::Null);
}

/// Thoughts are told apart, streamed or not, and the prompt may have opened or forbidden them.
#[tokio::test]
async fn thoughts_are_told_apart() {
    let app = app_with_template(THINKING, &[b"<th", b"ink>\nI ", b"see\n</thi", b"nk>\n", b"\nIt <think> is"]);
    let whole = app.chat(json!({})).await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("I see"), &json!("It <think> is")));
    let chunks = app.chat(json!({"stream": true})).await.chunks();
    assert_eq!(joined_delta(&chunks, 0, "reasoning_content"), "I see");
    assert_eq!(joined_content(&chunks, 0), "It <think> is");

    let opened = format!("{THINKING}{{% if add_generation_prompt %}}<think>\n{{% endif %}}");
    let app = app_with_template(&opened, &[b"I see</think>", b"Yes"]);
    let message = app.chat(json!({})).await.json()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("I see"), &json!("Yes")));

    // A template that knows no thoughts has none.
    let app = App::replying(&[b"<think>I", b"</think>b"]);
    let message = app.chat(json!({})).await.json()["choices"][0]["message"].clone();
    assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!("<think>I</think>b")));
}

/// vllm PR#45636: stop strings and the marks of thoughts, both over several tokens, do not get into each other's way.
#[tokio::test]
async fn vllm_45636_stop_strings_beside_marks() {
    let pieces: &[&[u8]] = &[b"<think>a <", b"/", b"think", b">", b"b <", b"/st", b"op> c"];
    let app = app_with_template(THINKING, pieces);
    for stream in [false, true] {
        let answer = app.chat(json!({"stop": ["</stop>"], "stream": stream})).await;
        let (thought, said, reason) = if stream {
            let chunks = answer.chunks();
            let reason = chunks.last().unwrap()["choices"][0]["finish_reason"].clone();
            (joined_delta(&chunks, 0, "reasoning_content"), joined_content(&chunks, 0), reason)
        } else {
            let choice = answer.json()["choices"][0].clone();
            let word = |name: &str| choice["message"][name].as_str().unwrap_or_default().to_owned();
            (word("reasoning_content"), word("content"), choice["finish_reason"].clone())
        };
        assert_eq!((thought.as_str(), said.as_str(), reason), ("a", "b ", json!("stop")));
    }
}

/// llama-cpp-python#1906: choices of a stream are told apart by index, each with its role and its end.
#[tokio::test]
async fn llama_cpp_python_1906_choices() {
    let app = App::new();
    let body = json!({"n": 3, "temperature": 2, "seed": 9});
    let whole = app.chat(body.clone()).await.json();
    let mut streamed = body;
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let chunks = app.chat(streamed).await.chunks();
    for index in 0..3 {
        let content = whole["choices"][index]["message"]["content"].as_str().unwrap();
        assert_eq!(joined_content(&chunks, index as u64), content);
        assert_eq!(joined_delta(&chunks, index as u64, "role"), "assistant");
    }
    let ends = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    assert_eq!(ends.filter(|choice| !choice["finish_reason"].is_null()).count(), 3);
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
}

/// SwiftLM#126, llama.cpp#13780: the stop suite holds here too.
#[tokio::test]
async fn swiftlm_126_llama_cpp_13780_stop_over_tokens() {
    let app = App::replying(&[b"ab", b"cd", b"ef"]);
    for (stop, wanted) in [(json!("bcde"), "a"), (json!(["zz", "d"]), "abc"), (json!("efg"), "abcdef")] {
        let whole = app.chat(json!({"stop": stop})).await.json();
        assert_eq!(whole["choices"][0]["message"]["content"], wanted);
        assert_eq!(joined_content(&app.chat(json!({"stop": stop, "stream": true})).await.chunks(), 0), wanted);
    }
}
