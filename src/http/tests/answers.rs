//! Shapes of whole answers.

use super::*;

/// The shape of OpenAI's `text_completion`.
#[tokio::test]
async fn the_plain_answer() {
    let answer = App::replying(&[b"Hello", b" world"]).complete(json!({})).await;
    assert!(answer.json()["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(answer.json()["system_fingerprint"].as_str().unwrap().ends_with("-000000000000"));
    insta::assert_json_snapshot!(answer.redacted());
}

/// llama.cpp#10733, #11346, llama-cpp-python#1787: the completions shape of log-probabilities, in one piece and streamed.
#[tokio::test]
async fn llama_cpp_10733_logprobs_golden() {
    let app = App::replying(&[b"He", b"llo", b"\xf0\x9f", b"\x8f\x96", b"!"]);
    let whole = app.complete(json!({"logprobs": 2})).await;
    insta::assert_json_snapshot!(rounded(whole.redacted()));
    let chunks = app.complete(json!({"logprobs": 2, "stream": true})).await.chunks();
    assert_eq!(joined(&chunks, 0), whole.text());
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let pieces = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
        let streamed: Vec<Value> = pieces.flatten().cloned().collect();
        assert_eq!(Value::from(streamed), whole.json()["choices"][0]["logprobs"][name], "{name}");
    }
}

/// vllm#4795, #3179: 0 alternatives still name the chosen token; the chosen one is always among the alternatives.
#[tokio::test]
async fn vllm_4795_the_chosen_token_is_always_there() {
    let app = App::new();
    for n in 0..=5 {
        let answer = app.complete(json!({"logprobs": n, "temperature": 2, "seed": n})).await.json();
        let logprobs = &answer["choices"][0]["logprobs"];
        for (i, token) in logprobs["tokens"].as_array().unwrap().iter().enumerate() {
            let top = logprobs["top_logprobs"][i].as_object().unwrap();
            assert_eq!(top.get(token.as_str().unwrap()), Some(&logprobs["token_logprobs"][i]));
            assert!((n.max(1)..=n + 1).contains(&top.len()), "{n}: {top:?}");
        }
    }
    let none = app.complete(json!({"logprobs": 1, "max_tokens": 0})).await.json();
    assert_eq!(none["choices"][0]["logprobs"]["tokens"], json!([]));
}

/// vllm#6521, #9336: `echo` with `max_tokens` 0 returns the prompt, scored if asked for.
#[tokio::test]
async fn vllm_6521_echo_without_generation() {
    let app = App::new();
    let answer = app.complete(json!({"echo": true, "max_tokens": 0})).await;
    assert_eq!(answer.text(), "abc");
    let body = answer.json();
    assert_eq!(
        (&body["choices"][0]["finish_reason"], &body["usage"]["completion_tokens"]),
        (&json!("length"), &json!(0))
    );
    let scored = app.complete(json!({"echo": true, "max_tokens": 0, "logprobs": 1})).await;
    assert_eq!(scored.text(), "abc");
    insta::assert_json_snapshot!(rounded(scored.redacted()));
    let plain = app.complete(json!({"max_tokens": 0})).await;
    assert_eq!(plain.text(), "");
}

#[tokio::test]
async fn echo_precedes_the_answer_in_every_form() {
    let app = App::new();
    let tail = app.complete(json!({})).await.text();
    for more in [json!({"echo": true}), json!({"echo": true, "logprobs": 0})] {
        for prompt in [json!("abc"), json!([256, 97, 98, 99])] {
            let mut more = more.clone();
            more["prompt"] = prompt;
            assert_eq!(app.complete(more.clone()).await.text(), format!("abc{tail}"), "{more}");
            more["stream"] = true.into();
            let chunks = app.complete(more.clone()).await.chunks();
            assert_eq!(chunks[0]["choices"][0]["text"], "abc", "{more}");
            assert_eq!(joined(&chunks, 0), format!("abc{tail}"), "{more}");
        }
    }
    let scored = app.complete(json!({"echo": true, "logprobs": 0, "max_tokens": 2})).await.json();
    assert_eq!(scored["choices"][0]["logprobs"]["text_offset"], json!([0, 0, 1, 2, 3, 4]));
}

/// SwiftLM#126: no part of a stop string is ever sent, wherever tokens begin; llama.cpp PR#9867: what was held back in
/// vain is.
#[tokio::test]
async fn swiftlm_126_llama_cpp_9867_stop_over_tokens() {
    let app = App::replying(&[b"ab", b"cd", b"ef"]);
    for stream in [false, true] {
        let text = async |stop: Value| {
            let answer = app.complete(json!({"stop": stop, "stream": stream})).await;
            if !stream {
                return (answer.text(), answer.json()["choices"][0]["finish_reason"].clone());
            }
            let chunks = answer.chunks();
            (joined(&chunks, 0), chunks.last().unwrap()["choices"][0]["finish_reason"].clone())
        };
        assert_eq!(text(json!("bcde")).await, ("a".to_owned(), json!("stop")));
        assert_eq!(text(json!(["zz", "d"])).await, ("abc".to_owned(), json!("stop")));
        assert_eq!(text(json!("efg")).await, ("abcdef".to_owned(), json!("stop")));
    }
}

/// Log-probabilities to three places: they come from f32 arithmetic.
pub(super) fn rounded(mut value: Value) -> Value {
    match &mut value {
        Value::Array(items) => items.iter_mut().for_each(|item| *item = rounded(item.take())),
        Value::Object(fields) => fields.values_mut().for_each(|field| *field = rounded(field.take())),
        Value::Number(number) if number.is_f64() => {
            value = json!((value.as_f64().unwrap() * 1e3).round() / 1e3);
        }
        _ => {}
    }
    value
}
