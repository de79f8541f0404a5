//! Answers under a grammar: only what it allows is said, with and without drafts.

use serde_json::{Value, json};

use super::{
    speculation::{PATTERNS, drafting, drafts, plainly, seen},
    testing::EOG,
    *,
};
use crate::grammar::{Grammar, GrammarSpec};

fn compile(house: &House, spec: &GrammarSpec) -> Option<Grammar> {
    Some(house.handle.loaded().unwrap().grammar_engine().unwrap().compile(spec).unwrap())
}

fn regex(house: &House, regex: &str) -> Option<Grammar> {
    compile(house, &GrammarSpec::Regex(regex.into()))
}

fn warm(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 5.0, seed: Some(seed), ..SamplingParams::default() }
}

#[test]
fn an_answer_ends_where_the_grammar_does() {
    let house = House::plain(2, 256, 16);
    let request = GenerateRequest { grammar: regex(&house, "[A-Z]{4}[0-9]{2}"), ..ask("abc", 40) };
    for request in [request.clone(), GenerateRequest { sampling: warm(1), ..request.clone() }] {
        let answer = house.answer(request);
        let (letters, digits) = answer.text.split_at(4);
        assert!(letters.chars().all(|c| c.is_ascii_uppercase()), "{}", answer.text);
        assert!(digits.len() == 2 && digits.chars().all(|c| c.is_ascii_digit()), "{}", answer.text);
        // No end-of-generation token was needed for it.
        assert_eq!((answer.reason(), answer.usage().completion_tokens), (FinishReason::Stop, 6));
    }
    // The budget may end it earlier, and at the very end of the grammar the end is its own.
    let short = house.answer(GenerateRequest { max_tokens: Some(5), ..request.clone() });
    assert_eq!((short.reason(), short.text.len()), (FinishReason::Length, 5));
    let exact = house.answer(GenerateRequest { max_tokens: Some(6), ..request });
    assert_eq!((exact.reason(), exact.text.len()), (FinishReason::Stop, 6));
    house.assert_empty();
}

#[test]
fn greedy_takes_the_likeliest_token_that_is_allowed() {
    // The rule's own answer is printable; where the grammar allows it, it stays.
    let house = House::plain(1, 256, 16);
    let free = house.answer(ask("abc", 12));
    let same = house.answer(GenerateRequest { grammar: regex(&house, "(?s:.{12,})"), ..ask("abc", 12) });
    assert_eq!((&same.text, same.reason()), (&free.text, FinishReason::Length));
}

#[test]
fn the_end_of_the_text_is_allowed_only_where_the_grammar_may_end() {
    // The model wants to end at once.
    let text = FakeText::new();
    let house = House::open(FakeEngine::new(&text, 1, 256, 16).with_rule(|_| EOG), text, roomy());
    let request = GenerateRequest { grammar: regex(&house, "[ab]{2}c*"), ..ask("x", 20) };
    let answer = house.answer(request.clone());
    assert_eq!((answer.text.len(), answer.reason()), (2, FinishReason::Stop));
    assert_eq!(answer.usage().completion_tokens, 3);
    // With `ignore_eos` it goes on as long as the grammar lets it.
    let on = house.answer(GenerateRequest { ignore_eos: true, ..request });
    assert_eq!((&on.text[2..], on.reason()), ("c".repeat(18).as_str(), FinishReason::Length));
    let bounded = GenerateRequest { ignore_eos: true, grammar: regex(&house, "[ab]{2}c{0,5}"), ..ask("x", 20) };
    let bounded = house.answer(bounded);
    assert_eq!((&bounded.text[2..], bounded.reason()), ("ccccc", FinishReason::Stop));
    house.assert_empty();
}

#[test]
fn stop_strings_cut_inside_the_grammar() {
    let house = House::plain(1, 256, 16);
    let grammar = compile(&house, &GrammarSpec::Text("root ::= [a-c]{3} \"END\" [a-c]{3}".into()));
    let answer = house.answer(GenerateRequest { grammar: grammar.clone(), stop: vec!["ND".into()], ..ask("x", 20) });
    assert_eq!((answer.text.len(), &answer.text[3..], answer.reason()), (4, "E", FinishReason::Stop));
    // One that ends with the grammar is cut off too.
    let stop = vec!["c".into(), "b".into(), "a".into()];
    let answer = house.answer(GenerateRequest { grammar, stop, ..ask("x", 20) });
    assert_eq!((answer.text.as_str(), answer.reason()), ("", FinishReason::Stop));
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let house = House::plain(1, 256, 16);
    let answer = house.answer(GenerateRequest { grammar: regex(&house, "[0-9]"), logprobs: Some(1), ..ask("abc", 3) });
    let token = &answer.tokens[0];
    let (likeliest, most) = token.top[0];
    assert_eq!(likeliest, testing::next_token(&ids("abc")));
    assert!(most > token.logprob.unwrap() && token.id != likeliest, "{token:?}");
}

#[test]
fn penalties_and_bias_choose_among_what_is_allowed() {
    let house = House::plain(1, 256, 16);
    let sampling = SamplingParams { logit_bias: vec![(66, 50.0), (120, 100.0)], ..SamplingParams::greedy() };
    let request = GenerateRequest { grammar: regex(&house, "[ABC]{3}"), sampling, ..ask("x", 20) };
    assert_eq!(house.answer(request.clone()).text, "BBB");
    let dry = SamplingParams { dry_multiplier: 100.0, dry_allowed_length: 1, ..request.sampling.clone() };
    let answer = house.answer(GenerateRequest { sampling: dry, ..request });
    assert!(answer.text.starts_with("BB") && !answer.text.ends_with('B'), "{}", answer.text);
}

/// Grammars of several kinds, all bounded.
fn specs() -> Vec<GrammarSpec> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    });
    vec![
        GrammarSpec::JsonSchema(person),
        GrammarSpec::JsonSchema(json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 4})),
        GrammarSpec::Text("root ::= \"(\" root \")\" | [a-z]{1,8}".into()),
        GrammarSpec::Regex("(one|two|three){1,6}".into()),
    ]
}

/// vllm#11484, #15554, #10442, #27969, onnxruntime-genai PR#2528: whatever the drafts, the grammar and the random numbers
/// move on with chosen tokens alone.
#[test]
fn vllm_11484_drafts_change_no_answer_under_a_grammar() {
    let mut accepted = 0;
    for (i, hits) in PATTERNS.into_iter().enumerate() {
        let house = drafting(3, 2048, 32, hits);
        for spec in specs() {
            let grammar = compile(&house, &spec);
            let request = |seed: u64| GenerateRequest {
                grammar: grammar.clone(),
                sampling: if seed.is_multiple_of(4) { SamplingParams::greedy() } else { warm(seed) },
                logprobs: seed.is_multiple_of(3).then_some(2),
                stop: if seed % 5 == 4 { vec!["e".into()] } else { Vec::new() },
                ignore_eos: seed % 7 == 3,
                ..ask(&"p".repeat(1 + seed as usize), 120)
            };
            let requests: Vec<_> = (0..12).map(|seed| request(seed + 12 * i as u64)).collect();
            let with: Vec<_> = requests.iter().map(|request| house.submit(request.clone())).collect();
            let without: Vec<_> = requests.iter().map(|request| house.submit(plainly(request))).collect();
            for (with, without) in with.into_iter().zip(without) {
                let (with, without) = (collect(with), collect(without));
                assert_eq!(seen(&with), seen(&without), "pattern {i}, {spec:?}");
                accepted += drafts(&with).accepted;
                if let (GrammarSpec::JsonSchema(_), FinishReason::Stop) = (&spec, with.reason()) {
                    let whole = serde_json::from_str::<Value>(&with.text).is_ok();
                    // Cut by a stop string otherwise.
                    assert!(whole || !with.text.contains('e'), "{}", with.text);
                }
            }
        }
        house.assert_empty();
    }
    assert!(accepted > 20, "{accepted} drafts accepted");
}

#[test]
fn a_seed_under_a_grammar_is_the_same_among_neighbours() {
    let house = House::plain(4, 1024, 16);
    let grammar = compile(&house, &specs()[0]);
    let request = |seed| GenerateRequest { grammar: grammar.clone(), sampling: warm(seed), ..ask("abc", 100) };
    let alone: Vec<String> = (0..8).map(|seed| house.answer(request(seed)).text).collect();
    let together: Vec<_> = (0..8).map(|seed| house.submit(request(seed))).collect();
    for (alone, together) in alone.iter().zip(together) {
        assert_eq!(*alone, collect(together).text);
    }
    assert!(alone.iter().any(|text| *text != alone[0]));
}

#[test]
fn a_grammar_that_leads_nowhere_fails_its_own_request_only() {
    let (house, gate) = House::gated(2, 256, 8);
    // `b` may begin, and then nothing can follow.
    let lark = "start: \"a\" | \"b\" one\none: one \"c\"";
    let grammar = compile(&house, &GrammarSpec::Lark(lark.into()));
    let sampling = SamplingParams { logit_bias: vec![(98, 100.0)], ..SamplingParams::greedy() };
    let dead = house.submit(GenerateRequest { grammar, sampling, ..ask("aa", 9) });
    let neighbour = house.submit(ask("bb", 9));
    drop(gate);
    let answer = collect(dead);
    let error = answer.error.unwrap();
    assert!(
        matches!(&error, ServeError::InvalidRequest { message, .. } if message.contains("no token follow")),
        "{error:?}"
    );
    assert_eq!(collect(neighbour).text, expected("bb", 9));
    house.assert_empty();
}

#[test]
fn a_grammar_that_becomes_too_complex_fails_its_own_request_only() {
    let house = House::plain(2, 1024, 8);
    let grammar = regex(&house, "(([a-z]{1,900}){1,900}){1,900}");
    let request = GenerateRequest { grammar, ignore_eos: true, ..ask("aa", 800) };
    let (first, second) = (house.submit(request), house.submit(ask("bb", 9)));
    let error = collect(first).error.unwrap();
    assert!(
        matches!(&error, ServeError::InvalidRequest { message, .. } if message.contains("too complex")),
        "{error:?}"
    );
    assert_eq!(collect(second).text, expected("bb", 9));
    house.assert_empty();
}

#[test]
fn the_engine_of_grammars_is_made_once() {
    let house = House::plain(1, 64, 8);
    let loaded = house.handle.loaded().unwrap();
    assert!(Arc::ptr_eq(&loaded.grammar_engine().unwrap(), &loaded.grammar_engine().unwrap()));
}
