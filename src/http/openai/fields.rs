//! The documented fields that all generating endpoints share, and their limits.
//!
//! `docs/api.md` has one table row for each entry; a test compares them.

use crate::http::fields::{Effect::Works, Field};

/// Largest `n` and largest number of choices in all.
pub const MAX_CHOICES: u32 = 128;
/// Most stop strings.
pub const MAX_STOPS: usize = 16;
/// Longest stop string, bytes.
pub const MAX_STOP_BYTES: usize = 4096;
/// Most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;

/// `model`, which every table begins with.
pub const MODEL: Field = Field {
    name: "model",
    takes: "string",
    schema: r#"{"type":"string"}"#,
    default: "the model served",
    effect: Works("Must be the id of the model served; another one is a 404 `model_not_found`."),
    good: "\"fake\"",
    bad: &["7", "[]"],
};

/// The shared fields but `model` and `max_tokens`, whose default differs.
pub const SHARED: &[Field] = &[
    Field {
        name: "max_completion_tokens",
        takes: "integer >= 0",
        schema: r#"{"type":"integer","minimum":0,"maximum":4294967295}"#,
        default: "`max_tokens`",
        effect: Works("The newer name of `max_tokens`; wins when both are given."),
        good: "3",
        bad: &["-1", "\"3\""],
    },
    Field {
        name: "temperature",
        takes: "number 0 to 2",
        schema: r#"{"type":"number","minimum":0,"maximum":2}"#,
        default: "1",
        effect: Works(
            "0 always takes the most likely token. Applied after bias, penalties, `top_k`, `top_p` and `min_p`, in this order.",
        ),
        good: "0.5",
        bad: &["-0.1", "2.1", "\"0.1\"", "true", "{}"],
    },
    Field {
        name: "top_p",
        takes: "number above 0, to 1",
        schema: r#"{"type":"number","exclusiveMinimum":0,"maximum":1}"#,
        default: "1 (off)",
        effect: Works("Keeps the smallest set of most likely tokens whose probability reaches this."),
        good: "0.5",
        bad: &["0", "-0.1", "1.1", "\"0.1\""],
    },
    Field {
        name: "top_k",
        takes: "integer >= 0, or -1",
        schema: r#"{"type":"integer","minimum":-1,"maximum":2147483647}"#,
        default: "0 (off)",
        effect: Works("Keeps this many most likely tokens; 0 and -1 keep all."),
        good: "2",
        bad: &["-2", "1.5", "\"1\"", "4294967296"],
    },
    Field {
        name: "min_p",
        takes: "number 0 to 1",
        schema: r#"{"type":"number","minimum":0,"maximum":1}"#,
        default: "0 (off)",
        effect: Works("Keeps tokens at least this fraction as likely as the most likely one."),
        good: "0.5",
        bad: &["-0.1", "1.1", "\"0\""],
    },
    Field {
        name: "seed",
        takes: "integer, 64 bits",
        schema: r#"{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}"#,
        default: "random",
        effect: Works("Makes the draw repeatable. Choice `i` of a prompt draws with `seed + i`."),
        good: "42",
        bad: &["1.5", "\"42\"", "true"],
    },
    Field {
        name: "stop",
        takes: "string, or array of up to 16 strings",
        schema: r#"{"anyOf":[{"type":"string","minLength":1,"maxLength":4096},{"type":"array","items":{"type":"string","minLength":1,"maxLength":4096},"maxItems":16}]}"#,
        default: "none",
        effect: Works(
            "The answer ends before the first of these texts, wherever tokens begin and end. No part of it is ever sent. OpenAI allows 4.",
        ),
        good: "[\"x\",\"y\"]",
        bad: &["\"\"", "[\"a\",\"\"]", "7", "{}", "[7]", "[null]"],
    },
    Field {
        name: "presence_penalty",
        takes: "number -2 to 2",
        schema: r#"{"type":"number","minimum":-2,"maximum":2}"#,
        default: "0",
        effect: Works("Taken off the logit of every token that has occurred, prompt included."),
        good: "1.5",
        bad: &["-2.1", "2.1", "\"0\""],
    },
    Field {
        name: "frequency_penalty",
        takes: "number -2 to 2",
        schema: r#"{"type":"number","minimum":-2,"maximum":2}"#,
        default: "0",
        effect: Works("Taken off the logit of a token once for each time it has occurred, prompt included."),
        good: "1.5",
        bad: &["-2.1", "2.1", "\"0\""],
    },
    Field {
        name: "logit_bias",
        takes: "object from token id to number -100 to 100, or array of [id, number]; up to 1024 entries",
        schema: r#"{"anyOf":[{"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100},"maxProperties":1024},{"type":"array","items":{"type":"array","items":{"type":"number"},"minItems":2,"maxItems":2},"maxItems":1024}]}"#,
        default: "none",
        effect: Works(
            "Added to the logits of these tokens before anything else: -100 bans a token, 100 all but forces it.",
        ),
        good: "{\"1\":-100}",
        bad: &[
            "{\"99999\":1}",
            "{\"-1\":1}",
            "{\"1\":101}",
            "{\"1\":\"x\"}",
            "{\"x\":1}",
            "[[1]]",
            "[1]",
            "\"x\"",
            "[[1,2,3]]",
        ],
    },
    Field {
        name: "n",
        takes: "integer 1 to 128",
        schema: r#"{"type":"integer","minimum":1,"maximum":128}"#,
        default: "1",
        effect: Works("Choices for each prompt. Each takes a lane of its own; there are at most 128 in all."),
        good: "2",
        bad: &["0", "129", "1.5", "\"2\""],
    },
    Field {
        name: "ignore_eos",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "false",
        effect: Works("Goes on after an end-of-generation token. Not in OpenAI's API; meant for benchmarks."),
        good: "true",
        bad: &["1", "\"true\""],
    },
    Field {
        name: "attention_path",
        takes: "string: `dense`, `direct-sparse`, `compact-flash`, `sparse-chunked` or `fallback`",
        schema: r#"{"enum":["dense","direct-sparse","compact-flash","sparse-chunked","fallback"]}"#,
        default: "what the policy decides",
        effect: Works(
            "Forces how attention runs, in every phase of this request; for experiments. A path that the backend lacks, or whose mask would \
             exceed the budget, gives way to the next one, with its reason in the log and in the metrics. A 400 when the engine has no choice. \
             See policy.md.",
        ),
        good: "\"fallback\"",
        bad: &["\"auto\"", "\"Dense\"", "\"\"", "7", "[]"],
    },
    Field {
        name: "speculative",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "true",
        effect: Works(
            "With false, no tokens are drafted for this request, whatever the server's strategy. Changes how long the answer takes, not what \
             it is. Not in OpenAI's API.",
        ),
        good: "false",
        bad: &["1", "\"false\""],
    },
    Field {
        name: "cache_prompt",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "true",
        effect: Works(
            "With false, nothing that the server keeps of earlier requests stands in for the beginning of this prompt. Changes how long the \
             answer takes, not what it is. Not in OpenAI's API; llama-server has it.",
        ),
        good: "false",
        bad: &["1", "\"false\""],
    },
    Field {
        name: "stream",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "false",
        effect: Works("Answers with server-sent events."),
        good: "true",
        bad: &["1", "\"true\""],
    },
    Field {
        name: "stream_options",
        takes: "object with `include_usage` (boolean)",
        schema: r#"{"type":"object","properties":{"include_usage":{"type":"boolean"}}}"#,
        default: "none",
        effect: Works(
            "With `include_usage`, one more chunk before `[DONE]` carries the usage and no choices, and all others `\"usage\": null`. Only \
             with `stream`; else a 400.",
        ),
        good: "{\"include_usage\":true}",
        bad: &["true", "[]", "{\"include_usage\":1}"],
    },
    Field {
        name: "user",
        takes: "string",
        schema: r#"{"type":"string"}"#,
        default: "none",
        effect: Works("Appears in the access log, cut to 64 characters. Does not change the answer."),
        good: "\"someone\"",
        bad: &["7", "{}"],
    },
];

/// `model`, then `own`, then the shared fields. `N` must be their number.
///
/// # Panics
/// At compile time, when `N` is another number.
pub const fn with_shared<const N: usize>(own: &[Field]) -> [Field; N] {
    let mut all = [MODEL; N];
    let mut i = 1;
    while i < N {
        all[i] = if i <= own.len() { own[i - 1] } else { SHARED[i - 1 - own.len()] };
        i += 1;
    }
    assert!(N == 1 + own.len() + SHARED.len(), "the table has another length");
    all
}
