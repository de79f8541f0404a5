//! What is accepted, what is refused, and how.

use super::*;
use crate::{
    http::{
        fields::{Effect, Field},
        openai::{
            completions::{
                fields::FIELDS,
                types::CompletionRequest,
                validate::{Validated, validate},
            },
            params::Params,
        },
        tokenize::{DETOKENIZE_FIELDS, DetokenizeRequest, TOKENIZE_FIELDS, TokenizeRequest},
    },
    serve::testing::answer,
    text::{Sampler, SamplingParams, TextError},
};

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn validated(body: Value) -> Validated {
    validate(serde_json::from_value::<CompletionRequest>(body).unwrap(), "fake", 258).unwrap()
}

/// A body in which `field` may take any value: some need others beside them.
fn body_for(field: &Field, value: Value) -> Value {
    let mut body = request(json!({"seed": 7}));
    if field.name == "stream_options" {
        body["stream"] = true.into();
    }
    body[field.name] = value;
    body
}

#[test]
fn the_tables_list_exactly_the_fields_that_are_parsed() {
    let names = |fields: &[Field]| fields.iter().map(|field| field.name).collect::<Vec<_>>();
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    assert_eq!(sorted(names(FIELDS)), sorted([CompletionRequest::FIELDS, Params::FIELDS].concat()));
    assert_eq!(names(TOKENIZE_FIELDS), TokenizeRequest::FIELDS);
    assert_eq!(names(DETOKENIZE_FIELDS), DetokenizeRequest::FIELDS);
}

/// ocp#470: accepted and ignored is the one thing that no field may be.
#[tokio::test]
async fn ocp_470_every_documented_field_works_or_is_refused() {
    let app = App::new();
    for field in FIELDS {
        let good = app.post("/v1/completions", &body_for(field, value(field.good))).await;
        match field.effect {
            Effect::Works(_) => assert_eq!(good.status, StatusCode::OK, "{}: {good:?}", field.name),
            Effect::Refused(_) => good.assert_error(400, "unsupported_parameter", field.name),
        }
        for bad in field.bad {
            let (status, _, param, message) = app.post("/v1/completions", &body_for(field, value(bad))).await.error();
            assert_eq!(status, 400, "{} = {bad}: {message}", field.name);
            assert!(param.starts_with(field.name) && message.contains(field.name), "{bad}: {param}: {message}");
        }
    }
    app.assert_alive().await;
}

/// ocp#470: what a field changes in the request as carried out. `model` and `best_of` accept only what is so anyway.
#[test]
fn ocp_470_every_working_field_has_an_effect() {
    for field in FIELDS.iter().filter(|field| matches!(field.effect, Effect::Works(_))) {
        let mut with = body_for(field, value(field.good));
        let mut without = with.clone();
        without.as_object_mut().unwrap().remove(field.name);
        if field.name == "prompt" {
            (with, without) = (request(json!({"prompt": "abd"})), request(json!({})));
        }
        let changes = validated(with) != validated(without);
        assert_eq!(changes, !matches!(field.name, "model" | "best_of"), "{}", field.name);
    }
}

/// llama.cpp#25515, PR#25538, vllm#19862, koboldcpp#1503: null means absent, in nested objects too.
#[tokio::test]
async fn llama_cpp_25515_vllm_19862_koboldcpp_1503_null_equals_absent() {
    let app = App::new();
    let mut without = request(json!({"seed": 7, "temperature": 1}));
    without.as_object_mut().unwrap().remove("max_tokens");
    let plain = app.post("/v1/completions", &without).await;
    assert_eq!(plain.json()["usage"]["completion_tokens"], 16, "{plain:?}");
    let mut all = without.clone();
    for field in FIELDS.iter().filter(|field| !without.as_object().unwrap().contains_key(field.name)) {
        let mut with = without.clone();
        with[field.name] = Value::Null;
        all[field.name] = Value::Null;
        let answer = app.post("/v1/completions", &with).await;
        assert_eq!(answer.redacted(), plain.redacted(), "{}", field.name);
    }
    assert_eq!(app.post("/v1/completions", &all).await.redacted(), plain.redacted());
    all["logit_bias"] = json!({"65": null});
    assert_eq!(app.post("/v1/completions", &all).await.redacted(), plain.redacted());
    all["stream"] = true.into();
    all["stream_options"] = json!({"include_usage": null});
    let chunks = app.post("/v1/completions", &all).await.chunks();
    assert_eq!(joined(&chunks, 0), plain.text());
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

/// cline#7183, PR#7397: a number sent as a string is refused by name, not replaced by the default.
#[tokio::test]
async fn cline_7183_a_number_as_a_string_is_refused() {
    let answer = App::new().complete(json!({"temperature": "0.1"})).await;
    answer.assert_error(400, "invalid_value", "temperature");
    assert_eq!(answer.error().3, "`temperature` must be a number, got a string");
}

/// sglang#3805, OpenFlowLM-Next#69: what is not JSON, not UTF-8 or not finished is a 400, and nothing is held up.
#[tokio::test]
async fn sglang_3805_openflowlm_69_broken_bodies() {
    let app = App::new();
    let bodies: [&[u8]; 8] = [
        b"",
        b"hello",
        b"{\"prompt\":",
        b"{\"prompt\":\"\xff\xfe\"}",
        b"{\"prompt\":\"a\"}{",
        b"{\"prompt\":\"\\ud800\"}",
        b"{\"temperature\":1e999}",
        b"\xff\xfe\x00",
    ];
    for body in bodies {
        app.post_bytes("/v1/completions", body).await.assert_error(400, "json_parse_error", "");
        app.assert_alive().await;
    }
    let deep = "[".repeat(100_000);
    app.post_bytes("/v1/completions", format!("{{\"x\":{deep}")).await.assert_error(400, "json_parse_error", "");
    for body in ["[]", "\"prompt\"", "7", "null"] {
        let (status, code, ..) = app.post_bytes("/v1/completions", body).await.error();
        assert_eq!((status, code.as_str()), (400, "invalid_value"), "{body}");
    }
    app.assert_alive().await;
}

/// NVIDIA-NeMo/Switchyard#400, atoma-infer#244: the media type is a 415, the size a 413, a type error never a 422.
#[tokio::test]
async fn switchyard_400_atoma_infer_244_three_codes_are_kept() {
    let app = App::new();
    let body = request(json!({})).to_string();
    let with_type = |media_type: &str| {
        let request = Request::post("/v1/completions").header("content-type", media_type);
        request.body(Body::from(body.clone())).unwrap()
    };
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        app.send(with_type(media_type)).await.assert_error(415, "unsupported_media_type", "");
    }
    for media_type in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
        assert_eq!(app.send(with_type(media_type)).await.status, StatusCode::OK, "{media_type}");
    }
    let mut zipped = with_type("application/json");
    zipped.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    app.send(zipped).await.assert_error(415, "unsupported_media_type", "");
    app.complete(json!({"max_tokens": []})).await.assert_error(400, "invalid_value", "max_tokens");
}

/// vllm PR#46582, lablup/mlxcel#1227: no 2 MiB limit; the limit that there is can be set and answers in the envelope.
#[tokio::test]
async fn vllm_46582_mlxcel_1227_large_bodies() {
    let app = App::new();
    let answer = app.complete(json!({"unheard_of": "x".repeat(5 << 20)})).await;
    assert_eq!(answer.status, StatusCode::OK);
    let answer = app.complete(json!({"prompt": "x".repeat(5 << 20)})).await;
    answer.assert_error(400, "context_length_exceeded", "prompt");
    let too_large = vec![b' '; (32 << 20) + 1];
    app.post_bytes("/v1/completions", too_large).await.assert_error(413, "request_too_large", "");

    let text = FakeText::new();
    let options = HttpOptions { max_body_bytes: 100, ..HttpOptions::default() };
    let app = App::with(FakeEngine::new(&text, 1, 64, 64), text, options);
    app.assert_alive().await;
    app.complete(json!({"user": "x".repeat(100)})).await.assert_error(413, "request_too_large", "");
    app.post_bytes("/tokenize", "x".repeat(101)).await.assert_error(413, "request_too_large", "");
}

/// llama.cpp#13700, ik PR#2321: `max_completion_tokens` counts, and wins.
#[tokio::test]
async fn llama_cpp_13700_max_completion_tokens() {
    let app = App::new();
    let tokens = async |more| app.complete(more).await.json()["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(tokens(json!({"max_tokens": null, "max_completion_tokens": 3})).await, 3);
    assert_eq!(tokens(json!({"max_tokens": 9, "max_completion_tokens": 3})).await, 3);
    assert_eq!(tokens(json!({"max_tokens": 2, "max_completion_tokens": 5})).await, 5);
    // Behind the context: clamped, and the answer says so.
    let answer = app.complete(json!({"max_tokens": 100_000})).await;
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(answer.json()["usage"]["total_tokens"], 256);
}

/// llama.cpp PR#15780, ik PR#2420, pegainfer#294, lmstudio#2339: a 400 with both numbers, before any stream begins.
#[tokio::test]
async fn llama_cpp_15780_lmstudio_2339_too_long_a_prompt() {
    let app = App::new();
    for stream in [false, true] {
        let answer = app.complete(json!({"prompt": "x".repeat(300), "stream": stream})).await;
        answer.assert_error(400, "context_length_exceeded", "prompt");
        let error = &answer.json()["error"];
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(301), &json!(256)));
    }
}

/// llama.cpp#5246: an empty prompt has a defined answer and leaves the server alive.
#[tokio::test]
async fn llama_cpp_5246_empty_prompts() {
    let app = App::new();
    let answer = app.complete(json!({"prompt": ""})).await;
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 1, "BOS alone: {answer:?}");
    for prompt in [json!([]), json!([[]]), json!([[1], []])] {
        app.complete(json!({"prompt": prompt})).await.assert_error(400, "invalid_value", "prompt");
        app.assert_alive().await;
    }
    app.complete(json!({"prompt": null})).await.assert_error(400, "invalid_value", "prompt");

    let text = NoBos(FakeText::new());
    let app = App::with(FakeEngine::new(&text.0, 1, 64, 64), text, HttpOptions::default());
    app.complete(json!({"prompt": ""})).await.assert_error(400, "invalid_value", "prompt");
    app.assert_alive().await;
}

/// A vocabulary without a token that opens a text; it panics when asked to tokenize "panic".
struct NoBos(FakeText);

impl TextModel for NoBos {
    fn n_vocab(&self) -> u32 {
        self.0.n_vocab()
    }

    fn tokenize(&self, text: &str, _add_special: bool, parse_special: bool) -> Result<Vec<i32>, TextError> {
        assert_ne!(text, "panic", "asked for");
        self.0.tokenize(text, false, parse_special)
    }

    fn piece(&self, token: i32, render_special: bool) -> Vec<u8> {
        self.0.piece(token, render_special)
    }

    fn is_eog(&self, token: i32) -> bool {
        self.0.is_eog(token)
    }

    fn bos(&self) -> Option<i32> {
        None
    }

    fn sampler(&self, params: &SamplingParams) -> Result<Box<dyn Sampler>, TextError> {
        self.0.sampler(params)
    }
}

/// A panic in a handler is a 500 in the envelope that clients do not repeat, and the server goes on.
#[tokio::test]
async fn a_panic_is_an_answer_too() {
    let text = NoBos(FakeText::new());
    let app = App::with(FakeEngine::new(&text.0, 1, 64, 64), text, HttpOptions::default());
    let answer = app.complete(json!({"prompt": "panic"})).await;
    answer.assert_error(500, "internal_error", "");
    assert_eq!(answer.header("x-should-retry"), "false");
    assert!(!answer.header("x-request-id").is_empty());
    app.assert_alive().await;
}

/// Text and token prompts, alone and in lists, mean the same.
#[tokio::test]
async fn all_prompt_shapes() {
    let app = App::new();
    let tokens = [256, 97, 98, 99];
    let wanted: String = answer(&tokens, 8).iter().map(|&token| char::from(token as u8)).collect();
    for prompt in [json!("abc"), json!(["abc"]), json!(tokens), json!([tokens])] {
        assert_eq!(app.complete(json!({"prompt": prompt})).await.text(), wanted, "{prompt}");
    }
    let both = app.complete(json!({"prompt": ["x", "abc"], "n": 2})).await.json();
    let texts: Vec<&str> = both["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!((texts[2], texts[3]), (wanted.as_str(), wanted.as_str()));
    assert_eq!(texts[0], texts[1]);
    // Each prompt counts once, each choice's tokens count.
    assert_eq!(both["usage"]["prompt_tokens"], 2 + 4);
    assert_eq!(both["usage"]["completion_tokens"], 4 * 8);
}

#[tokio::test]
async fn choices_are_bounded() {
    let app = App::new();
    let prompts = vec!["a"; 129];
    app.complete(json!({"prompt": prompts})).await.assert_error(400, "invalid_value", "prompt");
    app.complete(json!({"prompt": ["a", "b"], "n": 65})).await.assert_error(400, "invalid_value", "n");
    app.complete(json!({"stop": vec!["x"; 17]})).await.assert_error(400, "invalid_value", "stop");
    app.complete(json!({"stop": "x".repeat(4097)})).await.assert_error(400, "invalid_value", "stop");
    let many: Vec<(i32, f32)> = vec![(1, 1.0); 1025];
    app.complete(json!({"logit_bias": many})).await.assert_error(400, "invalid_value", "logit_bias");
}

/// Another model is a 404, and nothing of the name comes back; no name means the one served.
#[tokio::test]
async fn the_model_must_be_the_one_served() {
    let app = App::new();
    let answer = app.complete(json!({"model": "gpt-4o-SECRET"})).await;
    answer.assert_error(404, "model_not_found", "model");
    assert!(!answer.error().3.contains("SECRET") && answer.error().3.contains("fake"));
    assert_eq!(app.complete(json!({"model": "fake"})).await.status, StatusCode::OK);
}

/// gpustack#429: `stream_options` is accepted with `stream` and refused without, where it could do nothing.
#[tokio::test]
async fn gpustack_429_stream_options() {
    let app = App::new();
    let options = json!({"include_usage": true, "something_else": 1});
    let answer = app.complete(json!({"stream": true, "stream_options": options})).await;
    assert!(answer.chunks().last().unwrap()["usage"].is_object());
    app.complete(json!({"stream_options": options})).await.assert_error(400, "invalid_value", "stream_options");
}

/// llama.cpp PR#14946, #13605: bias as a map with string keys and as a list; both ban.
#[tokio::test]
async fn llama_cpp_14946_logit_bias_in_both_forms() {
    let app = App::new();
    let first = app.complete(json!({"max_tokens": 1})).await.text();
    let token = first.bytes().next().unwrap();
    let banned = app.complete(json!({"max_tokens": 1, "logit_bias": {token.to_string(): -100}})).await.text();
    assert_ne!(banned, first);
    let listed = app.complete(json!({"max_tokens": 1, "logit_bias": [[token, -100]]})).await.text();
    assert_eq!(listed, banned);
    assert_eq!(app.complete(json!({"max_tokens": 2, "logit_bias": {"90": 100}})).await.text(), "ZZ");
}

#[tokio::test]
async fn sampling_fields_reach_the_sampler() {
    let app = App::new();
    let text = async |more| app.complete(more).await.text();
    let hot = json!({"temperature": 2, "seed": 1, "max_tokens": 16});
    assert_eq!(text(hot.clone()).await, text(hot.clone()).await, "a seed makes it repeatable");
    assert_ne!(text(hot).await, text(json!({"temperature": 2, "seed": 2, "max_tokens": 16})).await);
    let greedy = text(json!({})).await;
    assert_eq!(text(json!({"temperature": 2, "top_k": 1, "seed": 3})).await, greedy);
    assert_eq!(text(json!({"temperature": 2, "top_k": 1, "top_p": 1, "min_p": 0, "seed": 3})).await, greedy);
    // -1 is off, as in vLLM.
    let off = |top_k: i32| json!({"temperature": 2, "seed": 3, "top_k": top_k});
    assert_eq!(text(off(-1)).await, text(off(0)).await);
    let sampling =
        validated(request(json!({"top_p": 0.25, "min_p": 0.5, "presence_penalty": 1, "seed": -1}))).common.sampling;
    assert_eq!(
        (sampling.top_p, sampling.min_p, sampling.presence_penalty, sampling.seed),
        (0.25, 0.5, 1.0, Some(u64::MAX))
    );
}

/// llama-cpp-python#1906, #1130: `n` gives that many choices, each with its own draw.
#[tokio::test]
async fn llama_cpp_python_1906_n_choices() {
    let app = App::new();
    let hot = |n: u32, seed: u32| json!({"temperature": 2, "seed": seed, "n": n});
    let three = app.complete(hot(3, 5)).await.json();
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    for (choice, seed) in choices.iter().zip(5..) {
        assert_eq!(choice["text"].as_str().unwrap(), app.complete(hot(1, seed)).await.text());
    }
    assert!(three.get("timings").is_none());
}

#[tokio::test]
async fn tokenize_and_detokenize() {
    let app = App::replying(&[b"\xf0\x9f"]);
    let tokens = async |body| app.post("/tokenize", &body).await.json()["tokens"].clone();
    assert_eq!(tokens(json!({"content": "ab"})).await, json!([97, 98]));
    assert_eq!(tokens(json!({"content": ""})).await, json!([]));
    assert_eq!(tokens(json!({"content": "a", "add_special": true})).await, json!([256, 97]));
    let pieces = tokens(json!({"content": "aé", "add_special": true, "with_pieces": true})).await;
    assert_eq!(
        pieces,
        json!([
            {"id": 256, "piece": "<bos>"},
            {"id": 97, "piece": "a"},
            {"id": 195, "piece": [195]},
            {"id": 169, "piece": [169]},
        ])
    );
    let content =
        async |tokens: Value| app.post("/detokenize", &json!({"tokens": tokens})).await.json()["content"].clone();
    assert_eq!(content(json!([256, 97, 195, 169])).await, "<bos>aé");
    assert_eq!(content(json!([])).await, "");
    assert_eq!(content(json!([258, 33])).await, "\u{fffd}!");
    app.post("/tokenize", &json!({})).await.assert_error(400, "invalid_value", "content");
    app.post("/detokenize", &json!({})).await.assert_error(400, "invalid_value", "tokens");
    app.post("/detokenize", &json!({"tokens": [259]})).await.assert_error(400, "invalid_value", "tokens");
    let long = app.post("/tokenize", &json!({"content": "x".repeat(100_000)})).await;
    assert_eq!(long.json()["tokens"].as_array().unwrap().len(), 100_000);

    for (path, fields) in [("/tokenize", TOKENIZE_FIELDS), ("/detokenize", DETOKENIZE_FIELDS)] {
        for field in fields {
            for bad in field.bad {
                let mut body = json!({"content": "a", "tokens": [1]});
                body[field.name] = value(bad);
                let (status, _, param, message) = app.post(path, &body).await.error();
                assert!(status == 400 && param.starts_with(field.name), "{} = {bad}: {message}", field.name);
            }
        }
    }
}
