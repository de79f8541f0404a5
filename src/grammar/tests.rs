//! Answers drawn at random under a grammar, on a vocabulary of bytes and pieces.

use serde_json::{Value, json};

use super::*;
use crate::serve::testing::{EOG, FakeText};

fn engine() -> GrammarEngine {
    GrammarEngine::new(&vocabulary()).unwrap()
}

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
fn say(grammar: &Grammar, seed: u64, most: usize) -> Option<String> {
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
    engine().compile(&GrammarSpec::JsonSchema(schema)).unwrap()
}

#[test]
fn every_text_under_a_schema_is_json_of_that_shape() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "on": {"type": "boolean"}, "n": {"enum": [1, 22]}},
        "required": ["name", "on", "n"],
        "additionalProperties": false,
    });
    let grammar = compile(schema);
    for seed in 0..200 {
        let text = say(&grammar, seed, 400).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert!(value["name"].as_str().is_some_and(|name| name.chars().count() <= 4), "{text}");
        assert!(value["on"].is_boolean() && [json!(1), json!(22)].contains(&value["n"]), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 3);
    }
}
