//! Grammars on the bundled model, whose drafts know nothing of them.

use serde_json::{Value, json};
use skippy_stage::{
    grammar::{Grammar, GrammarSpec},
    serve::{Drafts, FinishReason, GenerateRequest},
    text::SamplingParams,
};

use crate::bundled::{Server, greedy};

/// A schema of bounded texts, and what its values are.
type Case = (Value, fn(&Value) -> bool);

fn cases() -> [Case; 5] {
    [
        (
            json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 8},
                    "age": {"type": "integer", "minimum": 0, "maximum": 969},
                    "sons": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 2},
                },
                "required": ["name", "age", "sons"],
                "additionalProperties": false,
            }),
            |v| {
                let short = |v: &Value, most| v.as_str().is_some_and(|text| text.chars().count() <= most);
                let sons = v["sons"].as_array().unwrap();
                short(&v["name"], 8)
                    && v["age"].as_f64().is_some_and(|age| (0.0..=969.0).contains(&age))
                    && (1..=2).contains(&sons.len())
                    && sons.iter().all(|son| short(son, 5))
                    && v.as_object().is_some_and(|v| v.len() == 3)
            },
        ),
        (
            json!({"type": "array", "items": {"enum": ["Genesis", "Exodus", 3, null]}, "minItems": 2, "maxItems": 3}),
            |v| {
                let books = [json!("Genesis"), json!("Exodus"), json!(3), Value::Null];
                v.as_array().is_some_and(|v| (2..=3).contains(&v.len()) && v.iter().all(|book| books.contains(book)))
            },
        ),
        (json!({"type": "string", "pattern": "^(And|Then) [a-z]{3,9} [A-Z][a-z]{2,6}\\.$"}), |v| {
            let words: Vec<&str> = v.as_str().unwrap().split(' ').collect();
            words.len() == 3 && ["And", "Then"].contains(&words[0]) && words[2].ends_with('.')
        }),
        (
            json!({
                "type": "object",
                "properties": {"name": {"$ref": "#/$defs/name"}, "son": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/name"}]}},
                "required": ["name", "son"],
                "additionalProperties": false,
                "$defs": {"name": {"enum": ["Abraham", "Isaac", "Jacob"]}},
            }),
            |v| ["Abraham", "Isaac", "Jacob"].contains(&v["name"].as_str().unwrap()),
        ),
        (
            json!({"type": "object", "properties": {"verse": {"type": "string", "format": "date"}, "true": {"type": "boolean"}},
                "required": ["verse"], "additionalProperties": false}),
            |v| v["verse"].as_str().is_some_and(|date| date.len() == 10 && date.as_bytes()[4] == b'-'),
        ),
    ]
}

fn compile(server: &Server, spec: &GrammarSpec) -> Option<Grammar> {
    Some(server.handle.loaded().unwrap().grammar_engine().unwrap().compile(spec).unwrap())
}

/// vllm#11484, #15554, #10442, #27969: 200 answers under schemas, each with and without drafts.
#[test]
fn vllm_11484_every_answer_under_a_schema_is_valid_with_and_without_drafts() {
    let server = Server::alone();
    let prompts = server.prompts();
    let mut sum = Drafts::default();
    let mut ended = 0;
    for (which, (schema, check)) in cases().into_iter().enumerate() {
        let grammar = compile(&server, &GrammarSpec::JsonSchema(schema.clone()));
        for seed in 0..40 {
            let sampling = match seed {
                0 => SamplingParams::greedy(),
                _ => SamplingParams {
                    temperature: 1.0,
                    seed: Some(seed + 1000 * which as u64),
                    ..SamplingParams::default()
                },
            };
            let request = GenerateRequest {
                grammar: grammar.clone(),
                sampling,
                max_tokens: Some(200),
                // Which alone decides nothing: only the grammar ends these.
                ignore_eos: seed.is_multiple_of(2),
                ..greedy(prompts[seed as usize].clone())
            };
            let (said, drafts) = server.same_with_drafts(&request);
            sum.drafts += drafts.drafts;
            sum.accepted += drafts.accepted;
            if said.reason == FinishReason::Length {
                continue;
            }
            ended += 1;
            let value: Value =
                serde_json::from_str(&said.text).unwrap_or_else(|e| panic!("{schema} {:?}: {e}", said.text));
            assert!(check(&value), "{schema} {}", said.text);
        }
    }
    // Indents may use the budget up.
    assert!(ended >= 180, "{ended} of 200 answers came to an end");
    assert!(sum.accepted > 100 && sum.accepted < sum.drafts, "{sum:?}");
}

#[test]
fn gbnf_and_stop_strings_on_real_tokens() {
    let server = Server::alone();
    let grammar = compile(&server, &GrammarSpec::Text("root ::= \" \"? (\"the \" | \"and \")+ \"END\"".into()));
    for (seed, prompt) in (0..).zip(server.prompts().into_iter().take(12)) {
        let sampling = SamplingParams { temperature: 1.0, seed: Some(seed), ..SamplingParams::default() };
        let request = GenerateRequest { grammar: grammar.clone(), sampling, ignore_eos: false, ..greedy(prompt) };
        let (said, _) = server.same_with_drafts(&request);
        let words = said.text.trim_start().trim_end_matches("END").replace("the ", "").replace("and ", "");
        assert!(said.reason == FinishReason::Length || said.text.ends_with("END"), "{said:?}");
        assert!(said.reason == FinishReason::Length || words.is_empty(), "{said:?}");
        let (cut, _) = server.same_with_drafts(&GenerateRequest { stop: vec!["nd ".into()], ..request });
        assert!(!cut.text.contains("nd "), "{cut:?}");
        assert!(said.text.starts_with(&cut.text), "{said:?} {cut:?}");
    }
}

/// The answer goes on as the model has it where the grammar does not object. It does object to bytes that are no UTF-8, and
/// what it takes away from the tail changes every draw a little: only the likeliest few are drawn from here.
#[test]
fn a_grammar_that_allows_everything_changes_nothing() {
    let server = Server::alone();
    let grammar = compile(&server, &GrammarSpec::Regex("(?s:.*)".into()));
    for (seed, prompt) in (0..).zip(server.prompts().into_iter().take(10)) {
        let sampling = SamplingParams { temperature: 0.8, top_k: 3, seed: Some(seed), ..SamplingParams::default() };
        let free = GenerateRequest { sampling, ignore_eos: false, ..greedy(prompt) };
        let (said, _) = server.answer(free.clone());
        assert_eq!(server.answer(GenerateRequest { grammar: grammar.clone(), ..free }).0, said);
    }
}
