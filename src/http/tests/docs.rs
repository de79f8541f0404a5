//! `docs/api.md` holds tables that are made from the code; run with `UPDATE_DOCS=1` to write them.

use crate::grammar::schema::{FORMATS, KEYWORDS};
use crate::http::{
    error::ErrorCode,
    fields::{Effect, Field},
    openai::{UNSUPPORTED, chat, completions::fields::FIELDS},
    policy::EXPLAIN_FIELDS,
    routes,
    tokenize::{DETOKENIZE_FIELDS, TOKENIZE_FIELDS},
};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/api.md");

fn field_table(fields: &[Field]) -> String {
    let rows = fields.iter().map(|field| {
        let effect = match field.effect {
            Effect::Works(text) => text.to_owned(),
            Effect::Refused(text) => format!("**Refused with 400.** {text}"),
        };
        format!("| `{}` | {} | {} | {effect} |\n", field.name, field.takes, field.default)
    });
    std::iter::once("| Field | Takes | Default | What it does |\n|---|---|---|---|\n".to_owned()).chain(rows).collect()
}

fn error_table() -> String {
    let rows = ErrorCode::ALL.iter().map(|code| {
        let row = code.row();
        let retry = row.retry_after.map_or("-".to_owned(), |seconds| format!("`Retry-After: {seconds}`"));
        format!("| {} | `{}` | `{}` | {retry} | `{}` |\n", row.status, row.kind, row.code, row.metric.label())
    });
    let head = "| Status | `type` | `code` | Retry | `class` in metrics |\n|---|---|---|---|---|\n";
    std::iter::once(head.to_owned()).chain(rows).collect()
}

/// One row a path, in the order of the table of routes.
fn route_table() -> String {
    let mut table = "| Route | What it is |\n|---|---|\n".to_owned();
    for operation in routes::API.iter().chain(routes::PROBES) {
        table += &format!("| `{} {}` | {} |\n", operation.verb(), operation.path(), operation.summary);
    }
    table
}

fn keywords() -> String {
    let list = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    format!("Supported keywords: {}. Values of `format`: {}.\n", list(&KEYWORDS), list(&FORMATS))
}

fn unsupported_list() -> String {
    UNSUPPORTED.iter().map(|path| format!("* `{}`\n", path.replace("{*rest}", "…"))).collect()
}

#[test]
fn the_documentation_is_made_from_the_tables() {
    let mut text = std::fs::read_to_string(PATH).unwrap();
    let tables = [
        ("routes", route_table()),
        ("completions", field_table(FIELDS)),
        ("chat", field_table(chat::fields::FIELDS)),
        ("tokenize", field_table(TOKENIZE_FIELDS)),
        ("detokenize", field_table(DETOKENIZE_FIELDS)),
        ("explain", field_table(EXPLAIN_FIELDS)),
        ("errors", error_table()),
        ("keywords", keywords()),
        ("unsupported", unsupported_list()),
    ];
    for (name, wanted) in tables {
        let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let (head, rest) = text.split_once(&open).unwrap_or_else(|| panic!("{open}"));
        let (table, tail) = rest.split_once(&close).unwrap_or_else(|| panic!("{close}"));
        if std::env::var_os("UPDATE_DOCS").is_none() {
            assert!(table == wanted, "docs/api.md, table `{name}` differs from the code; expected\n{wanted}");
        }
        text = format!("{head}{open}{wanted}{close}{tail}");
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PATH, text).unwrap();
    }
}
