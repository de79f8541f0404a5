//! Answers drawn at random under a grammar, on a vocabulary of bytes and pieces.

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::*;
use crate::serve::testing::{BOS, EOG, FakeText};

/// Pieces that reach over what a grammar distinguishes.
fn vocabulary() -> FakeText {
    FakeText::with_pieces(["{\"", "\":", "\",\"", "\"}", "true", "123", "  ", "\u{fc}", "ab", "abc"])
}

fn piece(token: i32) -> Vec<u8> {
    crate::text::TextModel::piece(&vocabulary(), token, false)
}

/// A number below `n`, and the next state.
fn draw(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n
}

/// A text that the grammar ends by itself or by an end of generation; `None` when it is longer than `most` tokens.
pub(super) fn say(grammar: &Grammar, seed: u64, most: usize) -> Option<String> {
    let mut matching = grammar.start(false);
    let mut state = seed;
    let mut text = Vec::new();
    let row = vec![0.0; vocabulary_size()];
    for _ in 0..most {
        let masked = matching.mask(&row).unwrap();
        let allowed: Vec<i32> = (0..).zip(masked).filter(|(_, logit)| logit.is_finite()).map(|(id, _)| id).collect();
        // Rather an end than more, so that texts stay short.
        let token = match allowed.contains(&EOG) && draw(&mut state, 3) > 0 {
            true => EOG,
            false => allowed[draw(&mut state, allowed.len())],
        };
        matching.accept(token).unwrap();
        text.extend(piece(token));
        if matching.is_over() {
            return Some(String::from_utf8(text).unwrap());
        }
    }
    None
}

fn vocabulary_size() -> usize {
    crate::text::TextModel::n_vocab(&vocabulary()) as usize
}

fn compile(schema: Value) -> Grammar {
    shared().compile(&GrammarSpec::JsonSchema(schema)).unwrap()
}

/// One engine for all: making it takes a while.
pub(super) fn shared() -> &'static GrammarEngine {
    static ENGINE: OnceLock<GrammarEngine> = OnceLock::new();
    ENGINE.get_or_init(|| GrammarEngine::new(&vocabulary()).unwrap())
}

fn refusal(spec: GrammarSpec) -> String {
    let error = shared().compile(&spec).expect_err(&format!("{spec:?}")).to_string();
    assert!(error.len() < 500 && !error.contains(char::is_control), "{error:?}");
    error
}

/// Whether texts under a schema are what it says.
type Check = fn(&Value) -> bool;

fn length(value: &Value) -> usize {
    value.as_str().map_or(usize::MAX, |text| text.chars().count())
}

/// A whole number; -0 is one.
fn whole(value: &Value) -> i64 {
    let number = value.as_f64().unwrap();
    assert_eq!(number.fract(), 0.0);
    number as i64
}

fn schemas() -> Vec<(Value, Check)> {
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    vec![
        (json!({"enum": ["red", "green", 3, null, [1, "a"]]}), |v| {
            [json!("red"), json!("green"), json!(3), Value::Null, json!([1, "a"])].contains(v)
        }),
        (json!({"const": {"a": [1, {"b": "\u{fc}"}]}}), |v| *v == json!({"a": [1, {"b": "\u{fc}"}]})),
        (
            json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {
                "type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "boolean"}}}),
            |v| {
                let outer = v.as_array().unwrap();
                let inner = |v: &Value| v.as_array().is_some_and(|v| (2..=3).contains(&v.len()) && v[0].is_boolean());
                (1..=2).contains(&outer.len()) && outer.iter().all(inner)
            },
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "null"}, {"const": 7}], "items": false, "minItems": 2}),
            |v| *v == json!([null, 7]),
        ),
        (json!({"type": "array", "items": [{"const": 1}, {"const": 2}], "additionalItems": false}), |v| {
            [json!([]), json!([1]), json!([1, 2])].contains(v)
        }),
        (json!({"type": "integer", "minimum": -3, "maximum": 12}), |v| (-3..=12).contains(&whole(v))),
        (json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}), |v| {
            v.as_f64().is_some_and(|n| n > 0.0 && n <= 1.5)
        }),
        (json!({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 100}), |v| {
            whole(v) % 7 == 0 && (1..=100).contains(&whole(v))
        }),
        (json!({"type": "string", "minLength": 2, "maxLength": 4}), |v| (2..=4).contains(&length(v))),
        (json!({"type": "string", "pattern": "^[a-c]{2,3}-[0-9]$"}), |v| {
            let text = v.as_str().unwrap().as_bytes();
            (4..=5).contains(&text.len()) && text[text.len() - 2] == b'-' && text[0].is_ascii_lowercase()
        }),
        (json!({"type": "string", "format": "date"}), |v| v.as_str().is_some_and(|v| v.len() == 10 && &v[4..5] == "-")),
        (json!({"type": "string", "format": "uuid"}), |v| v.as_str().is_some_and(|v| uuid::Uuid::parse_str(v).is_ok())),
        (json!({"type": "string", "format": "ipv4"}), |v| v.as_str().unwrap().parse::<std::net::Ipv4Addr>().is_ok()),
        (json!({"type": "string", "format": "ipv6"}), |v| v.as_str().unwrap().parse::<std::net::Ipv6Addr>().is_ok()),
        (json!({"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 1}]}), |v| v.is_null() || length(v) <= 1),
        (json!({"oneOf": [{"type": "boolean"}, {"const": "x"}]}), |v| v.is_boolean() || v == "x"),
        (json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 4}]}), |v| [3, 4].contains(&whole(v))),
        (json!({"type": ["boolean", "null"]}), |v| v.is_boolean() || v.is_null()),
        (object(json!({"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"const": 1}}), json!(["a", "c"])), |v| {
            v["a"].is_boolean() && v["c"] == 1 && v.as_object().unwrap().keys().all(|key| "abc".contains(key))
        }),
        (json!({"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 2}), |v| {
            v.as_object().is_some_and(|v| v.len() <= 2 && v.values().all(Value::is_null))
        }),
        (
            json!({"type": "object", "patternProperties": {"^x[0-9]$": {"const": 1}}, "additionalProperties": false,
                "minProperties": 1, "maxProperties": 1}),
            |v| {
                v.as_object()
                    .is_some_and(|v| v.iter().all(|(key, v)| key.starts_with('x') && key.len() == 2 && *v == 1))
            },
        ),
        (
            json!({"$ref": "#/$defs/tree", "$defs": {"tree": object(
                json!({"name": {"const": "n"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}}),
                json!(["name", "kids"]))}}),
            |v| v["name"] == "n" && v["kids"].is_array(),
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "title": "T", "x-order": 1, "type": "null"}),
            |v| v.is_null(),
        ),
    ]
}

#[test]
fn every_text_under_a_schema_is_what_it_says() {
    for (schema, check) in schemas() {
        let grammar = compile(schema.clone());
        let mut said = 0;
        for seed in 0..40 {
            let Some(text) = say(&grammar, seed, 300) else { continue };
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema} {text:?}: {error}"));
            assert!(check(&value), "{schema} {text}");
            said += 1;
        }
        assert!(said >= 20, "{schema}: {said} of 40 texts came to an end");
    }
}

#[test]
fn any_object_is_json_and_starts_with_a_brace() {
    let grammar = shared().compile(&GrammarSpec::JsonObject).unwrap();
    let texts: Vec<String> = (0..80).filter_map(|seed| say(&grammar, seed, 200)).collect();
    assert!(texts.len() > 30, "{}", texts.len());
    for text in texts {
        match serde_json::from_str::<Value>(&text) {
            Ok(value) => assert!(value.is_object(), "{text:?}"),
            // JSON all the same.
            Err(error) => assert!(error.to_string().starts_with("number out of range"), "{text:?}: {error}"),
        }
    }
}

#[test]
fn llama_cpp_23463_and_24097_what_a_schema_cannot_enforce_is_refused_by_name() {
    let cases = [
        (json!({"not": {"type": "null"}}), "`not`"),
        (json!({"if": {"type": "null"}, "then": false}), "`if`"),
        (json!({"type": "array", "uniqueItems": true}), "`uniqueItems`"),
        (json!({"type": "array", "contains": {"const": 1}}), "`contains`"),
        (json!({"propertyNames": {"maxLength": 3}}), "`propertyNames`"),
        (json!({"dependentRequired": {"a": ["b"]}}), "`dependentRequired`"),
        (json!({"properties": {"a": {"items": {"unevaluatedItems": false}}}}), "`#/properties/a/items`"),
        (json!({"$dynamicRef": "#a"}), "`$dynamicRef`"),
        (json!({"type": "string", "nullable": true}), "`nullable`"),
        (json!({"type": "object", "requird": ["a"]}), "`requird`"),
        (json!({"x-guidance": {"lenient": true}}), "`x-guidance`"),
        (json!({"type": "string", "format": "binary"}), "format `binary`"),
        (json!({"$ref": "https://example.com/schema"}), "`https://example.com/schema`"),
        (json!({"$ref": "#/$defs/none"}), "where there is no schema"),
        (json!({"$ref": "#/default", "default": {"not": true}}), "where there is no schema"),
        (json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": true}}), "without escapes"),
        (json!({"$defs": {"a": {"$id": "other"}}}), "at the root only"),
        (json!({"$schema": "https://example.com/dialect"}), "`$schema`"),
        (json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), "`oneOf`"),
        (json!({"type": "integer", "minimum": 4, "maximum": 3}), "minimum"),
        (json!({"allOf": [{"type": "null"}, {"type": "boolean"}]}), "nsatisfiable"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "regex"),
        (json!({"type": "string", "pattern": 7}), "pattern"),
        (json!({"type": "integer", "multipleOf": 0}), "`multipleOf`"),
        (json!({"type": "number", "multipleOf": 1.2345}), "`multipleOf`"),
        (json!({"type": "integer", "multipleOf": 999_983}), "`multipleOf`"),
        (json!({"type": "strin"}), "strin"),
        (json!({"properties": []}), "`properties` must be an object"),
        (json!({"anyOf": {}}), "`anyOf` must be an array"),
        (json!({"items": 3}), "must be an object or a boolean"),
        (json!([]), "must be an object or a boolean"),
        (json!(false), "admits no value"),
        (json!({"enum": []}), "nsatisfiable"),
        (json!({"properties": {"a": {"$ref": "#", "type": "object"}}}), "circular"),
    ];
    for (schema, reason) in cases {
        let error = refusal(GrammarSpec::JsonSchema(schema.clone()));
        assert!(error.contains(reason), "{schema}: {error}");
    }
}

#[test]
fn schemas_are_bounded_in_every_direction() {
    let deep = (0..200).fold(json!(true), |inner, _| json!({"items": inner}));
    let wide: Value = (0..5000).map(|i| (format!("p{i}"), json!(true))).collect::<serde_json::Map<_, _>>().into();
    let patterns = |n| (0..n).map(|i| (format!("^p{i}$"), json!(true))).collect::<serde_json::Map<_, _>>();
    // Each definition leads to the next.
    let chain = |n: usize| {
        let next = |i| if i + 1 < n { json!({"items": {"$ref": format!("#/$defs/d{}", i + 1)}}) } else { json!(true) };
        let defs: serde_json::Map<_, _> = (0..n).map(|i| (format!("d{i}"), next(i))).collect();
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    let cases = [
        (deep, "inside one another"),
        (json!({"properties": wide}), "4096 schemas"),
        (chain(1001), "levels in all"),
        (
            json!({"anyOf": [{"patternProperties": patterns(16)}, {"patternProperties": patterns(17)}]}),
            "`patternProperties`",
        ),
        (json!({"anyOf": (0..5).map(|i| json!({"multipleOf": 999 - i})).collect::<Vec<_>>()}), "add up to"),
        (json!({"description": "x".repeat(300_000)}), "bytes"),
    ];
    for (schema, reason) in cases {
        let error = shared().compile(&GrammarSpec::JsonSchema(schema)).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    // What is just within them fits on the compiler's stack.
    compile(chain(900));
    compile((0..60).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner})));
}

#[test]
fn a_regular_expression_matches_as_a_whole() {
    let grammar = shared().compile(&GrammarSpec::Regex("(ab|c){1,3}[0-9]".into())).unwrap();
    for seed in 0..50 {
        let text = say(&grammar, seed, 20).unwrap();
        let (letters, digit) = text.split_at(text.len() - 1);
        assert!(
            digit.chars().all(|c| c.is_ascii_digit()) && letters.replace("ab", "c").chars().all(|c| c == 'c'),
            "{text}"
        );
    }
    assert!(refusal(GrammarSpec::Regex("(a".into())).contains("regex"));
    assert!(refusal(GrammarSpec::Regex("a".repeat(20_000))).contains("bytes"));
    refusal(GrammarSpec::Regex("(?<=a)b".into()));
}

#[test]
fn lark_with_schemas_inside() {
    let lark = r#"
        start: "call " ("one" | "two") " " args   // a comment with "quotes" and <tokens>
        args: %json {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}
        # temperature=1 in a comment is nothing
    "#;
    let grammar = shared().compile(&GrammarSpec::Lark(lark.into())).unwrap();
    for seed in 0..50 {
        let text = say(&grammar, seed, 200).unwrap();
        let args = text.strip_prefix("call one ").or_else(|| text.strip_prefix("call two ")).unwrap();
        assert!(serde_json::from_str::<Value>(args).unwrap()["a"].is_boolean(), "{text}");
    }
}

#[test]
fn llama_cpp_19051_a_grammar_that_does_not_parse_is_refused_with_the_reason() {
    let deep = format!("start: {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    let cases = [
        ("", "start"),
        ("start: missing", "missing"),
        ("start \"a\"", "xpected"),
        ("start: \"a", "lexer error"),
        ("start: <think> \"a\"", "tokens (`<...>`) are not supported"),
        ("start: <[5]>", "tokens (`<...>`) are not supported"),
        ("start: a\na[temperature=0.5]: /x/", "`temperature`"),
        ("start: a\na[capture]: /x/", "`capture`"),
        ("start: a\na[stop=\"x\"]: /.*/", "`stop`"),
        ("%llguidance {\"no_forcing\": true}\nstart: \"a\"", "`%llguidance`"),
        ("start: %json {\"not\": {}}", "`not`"),
        ("start: %json {", "expected JSON"),
        ("start: %json", "expected JSON"),
        ("start: @other", "other"),
        ("start: T\nT: /a/ & /b/", "no text"),
        (&deep, "brackets inside one another"),
        ("{\"grammars\": []}", ""),
    ];
    for (text, reason) in cases {
        for spec in [GrammarSpec::Text(text.into()), GrammarSpec::Lark(text.into())] {
            let error = refusal(spec);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
    assert!(refusal(GrammarSpec::Lark("#".repeat(1 << 19))).contains("bytes"));
    // What is a name elsewhere is one here too.
    shared().compile(&GrammarSpec::Text("start: temperature stop\ntemperature: \"1\"\nstop: \"a\"".into())).unwrap();
}

#[test]
fn control_tokens_never_match_and_ends_only_where_the_grammar_may_end() {
    let grammar = shared().compile(&GrammarSpec::Regex("(?s:.*)".into())).unwrap();
    let row = vec![0.0; vocabulary_size()];
    for (ignore_eos, end) in [(false, true), (true, false)] {
        let mut matching = grammar.start(ignore_eos);
        let masked = matching.mask(&row).unwrap();
        assert_eq!(masked[BOS as usize], f32::NEG_INFINITY);
        assert_eq!(masked[EOG as usize].is_finite(), end);
        assert!(matching.accept(BOS).is_err());
    }
    let grammar = shared().compile(&GrammarSpec::Regex("a".into())).unwrap();
    let mut matching = grammar.start(true);
    let masked = matching.mask(&row).unwrap();
    let allowed: Vec<usize> = (0..masked.len()).filter(|&id| masked[id].is_finite()).collect();
    assert_eq!(allowed, [usize::from(b'a')]);
    matching.accept(i32::from(b'a')).unwrap();
    assert!(matching.is_over());
}

#[test]
fn an_empty_text_is_one_too() {
    for text in ["start: \"\"", "root ::= \"\""] {
        let grammar = shared().compile(&GrammarSpec::Text(text.into())).unwrap();
        for ignore_eos in [false, true] {
            let mut matching = grammar.start(ignore_eos);
            let row = vec![0.0; vocabulary_size()];
            let masked = matching.mask(&row).unwrap();
            assert!((0..).zip(masked).all(|(id, logit)| logit.is_finite() == (id == EOG)));
            matching.accept(EOG).unwrap();
            assert!(matching.is_over());
        }
    }
}

#[test]
fn clones_are_independent() {
    let grammar = shared().compile(&GrammarSpec::Regex("[ab]{3}".into())).unwrap();
    let mut first = grammar.start(false);
    let mut second = grammar.clone().start(false);
    first.accept(97).unwrap();
    first.accept(98).unwrap();
    second.accept(98).unwrap();
    first.accept(98).unwrap();
    assert!(first.is_over() && !second.is_over());
    assert!(first.accept(97).is_err());
    second.accept(97).unwrap();
}

/// `docs/grammar.md` lists what is supported; `UPDATE_DOCS=1` writes the lists.
#[test]
fn the_documentation_lists_what_is_enforced() {
    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/grammar.md");
    let mut text = std::fs::read_to_string(PATH).unwrap();
    let lists: [(&str, &[&str]); 3] =
        [("keywords", &schema::KEYWORDS), ("annotations", &schema::ANNOTATIONS), ("formats", &schema::FORMATS)];
    for (name, words) in lists {
        let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        let (before, rest) = text.split_once(&format!("<!-- {name} -->\n")).unwrap();
        let (_, after) = rest.split_once("<!-- end -->").unwrap();
        text = format!("{before}<!-- {name} -->\n{}\n<!-- end -->{after}", words.join(", "));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PATH, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(PATH).unwrap(), text, "run with UPDATE_DOCS=1");
    for number in [schema::MAX_SUBSCHEMAS, schema::MAX_DEPTH, schema::MAX_PATTERNS, schema::MAX_MULTIPLE as usize] {
        assert!(text.contains(&number.to_string()), "{number} is not in the documentation");
    }
}
