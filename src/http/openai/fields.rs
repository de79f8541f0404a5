//! The documented fields that all generating endpoints share, and their limits.
//!
//! `docs/api.md` has one table row for each entry; a test compares them.

mod sampling;

pub use self::sampling::SAMPLING;
use crate::http::fields::{Effect::Works, Field};

/// Largest `n` and largest number of choices in all.
pub const MAX_CHOICES: u32 = 128;
/// Most stop strings.
pub const MAX_STOPS: usize = 16;
/// Longest stop string, bytes.
pub const MAX_STOP_BYTES: usize = 4096;
/// Most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most pairs of `metadata`.
pub const MAX_METADATA: usize = 16;
/// Longest key of `metadata`, characters.
pub const MAX_METADATA_KEY: usize = 64;
/// Longest value of `metadata`, characters.
pub const MAX_METADATA_VALUE: usize = 512;

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

/// The shared fields but `model`, [`SAMPLING`] and `max_tokens`, whose default differs.
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
        name: "response_format",
        takes: "object with `type`: `text`, `json_object` or `json_schema`",
        schema: r#"{"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object","json_schema"]},"json_schema":{"type":"object","required":["schema"],"properties":{"schema":{"type":"object"}}}}}"#,
        default: "`text`",
        effect: Works(
            "`json_object` holds the answer to JSON objects, `json_schema` to the schema in `json_schema.schema`, whether `strict` or not: only tokens that fit are chosen. What cannot be held to is a 400, see below.",
        ),
        good: r#"{"type":"json_object"}"#,
        bad: &[
            r#""json_object""#,
            "{}",
            r#"{"type":"yaml"}"#,
            r#"{"type":7}"#,
            r#"{"type":"json_schema"}"#,
            r#"{"type":"json_schema","json_schema":{"name":"x"}}"#,
            r#"{"type":"json_schema","json_schema":{"schema":7}}"#,
            r#"{"type":"json_schema","json_schema":{"schema":{"type":"nothing"}}}"#,
            r#"{"type":"json_object","json_schema":{"schema":{}}}"#,
        ],
    },
    Field {
        name: "grammar",
        takes: "string, up to 256 KiB",
        schema: r#"{"type":"string"}"#,
        default: "none",
        effect: Works(
            "Holds the answer to a grammar, in llama.cpp's GBNF or in Lark. One that cannot be used is a 400, as is one beside a `response_format` other than `text`.",
        ),
        good: r#""start: \"a\"+""#,
        bad: &["7", r#""][""#, r#""start: missing""#],
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
    Field {
        name: "metadata",
        takes: "object of up to 16 strings, keys up to 64 and values up to 512 characters",
        schema: r#"{"type":"object","additionalProperties":{"type":"string","maxLength":512},"maxProperties":16}"#,
        default: "none",
        effect: Works("Appears in the access log, cut to 256 characters. Does not change the answer."),
        good: r#"{"run":"7"}"#,
        bad: &[r#""x""#, "[]", r#"{"run":7}"#, r#"{"run":{}}"#],
    },
];

/// `model`, then `own`, then the shared fields: [`table_len`] of them.
///
/// # Panics
/// At compile time, when `N` is another number.
pub const fn table<const N: usize>(own: &[Field]) -> [Field; N] {
    assert!(N == table_len(own), "the table has another length");
    let mut all = [MODEL; N];
    let mut i = 1;
    let parts = [own, SAMPLING, SHARED];
    let mut part = 0;
    while part < parts.len() {
        let mut j = 0;
        while j < parts[part].len() {
            all[i] = parts[part][j];
            (i, j) = (i + 1, j + 1);
        }
        part += 1;
    }
    all
}

/// Entries of the table of an endpoint that has `own` fields beside the shared ones.
pub const fn table_len(own: &[Field]) -> usize {
    1 + own.len() + SAMPLING.len() + SHARED.len()
}
