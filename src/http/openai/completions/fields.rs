//! The documented fields of `POST /v1/completions`: what each does, and samples that the tests walk through.

use crate::http::{
    fields::{
        Effect::{Refused, Works},
        Field,
    },
    openai::fields::{table, table_len},
};

/// Most alternatives per token.
pub const MAX_LOGPROBS: u32 = 5;
/// `max_tokens` when absent: OpenAI's.
pub const DEFAULT_MAX_TOKENS: u32 = 16;

/// All documented fields, in the order of the documentation.
pub const FIELDS: &[Field] = &table::<{ table_len(OWN) }>(OWN);

/// Those that other endpoints do not have, or have with another default.
const OWN: &[Field] = &[
    Field {
        name: "prompt",
        takes: "string, array of token ids, array of strings, or array of token id arrays",
        schema: r#"{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"integer","minimum":0},"minItems":1},{"type":"array","items":{"type":"string"},"minItems":1},{"type":"array","items":{"type":"array","items":{"type":"integer","minimum":0},"minItems":1},"minItems":1}]}"#,
        default: "required",
        effect: Works(
            "Control tokens written out in a string count as such, and what the model expects around a prompt (such as BOS) is added; \
             token ids are taken as they are. Several prompts give several choices, in order. An empty string means BOS alone, and is a 400 \
             if the model has none; an empty array is a 400.",
        ),
        good: "\"abc\"",
        bad: &[
            "7",
            "true",
            "{}",
            "[]",
            "[[]]",
            "[[1],[]]",
            "[-1]",
            "[1.5]",
            "[99999]",
            "[18446744073709551615]",
            "[1,\"a\"]",
            "[\"a\",1]",
            "[null]",
        ],
    },
    Field {
        name: "max_tokens",
        takes: "integer >= 0",
        schema: r#"{"type":"integer","minimum":0,"maximum":4294967295}"#,
        default: "16",
        effect: Works(
            "Tokens generated at most. What exceeds the context is clamped: the answer then ends with `length`. 0 generates nothing, which \
             with `echo` and `logprobs` scores the prompt.",
        ),
        good: "3",
        bad: &["-1", "1.5", "\"3\"", "true", "4294967296"],
    },
    Field {
        name: "logprobs",
        takes: "integer 0 to 5",
        schema: r#"{"type":"integer","minimum":0,"maximum":5}"#,
        default: "none",
        effect: Works(
            "Log-probability of every token, with this many alternatives at its place; the chosen token is always among them, so there may be \
             one more. They come from the raw logits: sampling parameters do not change them. `text_offset` counts characters of `text`.",
        ),
        good: "2",
        bad: &["6", "-1", "true", "\"1\""],
    },
    Field {
        name: "echo",
        takes: "boolean",
        schema: r#"{"type":"boolean"}"#,
        default: "false",
        effect: Works("The answer begins with the prompt, whose log-probabilities are given too if asked for."),
        good: "true",
        bad: &["1", "\"true\""],
    },
    Field {
        name: "best_of",
        takes: "integer, equal to `n`",
        schema: r#"{"type":"integer","minimum":1,"maximum":128}"#,
        default: "`n`",
        effect: Works("Accepted when it changes nothing, that is when it equals `n`; else a 400."),
        good: "1",
        bad: &["2", "0", "\"1\""],
    },
    Field {
        name: "suffix",
        takes: "string",
        schema: r#"{"type":"string"}"#,
        default: "none",
        effect: Refused("Text after the insertion (fill in the middle) is not implemented."),
        good: "\"end\"",
        bad: &[],
    },
];
