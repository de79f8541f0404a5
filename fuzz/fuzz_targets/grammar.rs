//! Any bytes as a grammar: it is refused in short, printable words, or texts can be drawn from it. Neither may take long,
//! and a text under a schema that comes to its end is JSON.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use skippy_stage::{
    grammar::{GrammarEngine, GrammarError, GrammarSpec},
    serve::testing::{EOG, FakeText},
    text::TextModel,
};

fn vocabulary() -> FakeText {
    FakeText::with_pieces(["{\"", "\":", "\",\"", "\"}", "true", "123", "  ", "\u{fc}", "ab", "abc"])
}

fn check(error: &GrammarError) {
    let message = error.to_string();
    assert!(message.len() < 2000 && !message.contains(char::is_control), "{message:?}");
    assert!(!matches!(error, GrammarError::Fault(_) | GrammarError::Vocabulary(_)), "{message}");
}

fuzz_target!(|bytes: &[u8]| {
    static ENGINE: OnceLock<GrammarEngine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| GrammarEngine::new(&vocabulary()).expect("the vocabulary is fit for grammars"));
    let Some((&kind, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (spec, is_json) = match kind % 4 {
        0 => (GrammarSpec::Text(text.into()), false),
        1 => (GrammarSpec::Text(format!("root ::= {text}")), false),
        2 => match serde_json::from_str(text) {
            Ok(schema) => (GrammarSpec::JsonSchema(schema), true),
            Err(_) => return,
        },
        _ => (GrammarSpec::Regex(text.into()), false),
    };
    let grammar = match engine.compile(&spec) {
        Ok(grammar) => grammar,
        Err(error) => return check(&error),
    };
    let text = vocabulary();
    let row = vec![0.0; text.n_vocab() as usize];
    let mut matching = grammar.start(kind >= 128);
    let mut said = Vec::new();
    let mut state = u64::from(kind);
    for _ in 0..40 {
        let masked = match matching.mask(&row) {
            Ok(masked) => masked,
            Err(error) => return check(&error),
        };
        let allowed: Vec<i32> = (0..).zip(masked).filter(|(_, logit)| logit.is_finite()).map(|(id, _)| id).collect();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = allowed[(state >> 33) as usize % allowed.len()];
        if let Err(error) = matching.accept(token) {
            return check(&error);
        }
        said.extend(text.piece(token, false));
        if token == EOG || matching.is_over() {
            let whole = String::from_utf8(said).expect("text is UTF-8");
            let json = serde_json::from_str::<serde_json::Value>(&whole);
            let too_large = |error: &serde_json::Error| error.to_string().starts_with("number out of range");
            assert!(!is_json || json.as_ref().map_or_else(too_large, |_| true), "{whole:?}");
            return;
        }
    }
});
