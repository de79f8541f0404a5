//! One request at a time: what the answer says.

use super::*;
use crate::{
    serve::testing::{BOS, EOG, FIRST_PIECE},
    text::{LogSoftmax, Sampler, TextError, TextModel},
};

#[test]
fn a_greedy_answer_of_the_budgets_length() {
    let house = House::plain(2, 256, 8);
    let answer = house.answer(ask("hello there", 20));
    assert_eq!(answer.text, expected("hello there", 20));
    assert_eq!(answer.started, Some(11));
    assert_eq!(answer.reason(), FinishReason::Length);
    assert_eq!(answer.usage(), Usage { prompt_tokens: 11, cached_tokens: 0, completion_tokens: 20 });
    assert_eq!(answer.tokens.len(), 20);
    assert!(answer.tokens.iter().all(|token| token.logprob.is_none() && token.top.is_empty()));
    let timings = answer.timings();
    assert!(timings.prompt_per_second > 0.0 && timings.predicted_per_second > 0.0, "{timings:?}");
    house.assert_empty();
}

#[test]
fn end_of_generation_stops_and_shows_no_text() {
    let house = House::replying(&ids("bye"), &[]);
    let answer = house.answer(ask("x", 100));
    assert_eq!((answer.text.as_str(), answer.reason()), ("bye", FinishReason::Stop));
    assert_eq!((answer.tokens.len(), answer.usage().completion_tokens), (3, 4));
    // The last token of the budget is the end: that counts as a stop.
    assert_eq!(house.answer(ask("x", 4)).reason(), FinishReason::Stop);
    assert_eq!(house.answer(ask("x", 3)).reason(), FinishReason::Length);
}

#[test]
fn ignore_eos_goes_on_after_the_end() {
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 1, 64, 8).with_rule(|history| if history.len() % 2 == 0 { EOG } else { 97 });
    let house = House::open(engine, text, roomy());
    let answer = house.answer(GenerateRequest { ignore_eos: true, ..ask("x", 5) });
    assert_eq!((answer.text.as_str(), answer.reason()), ("aaa", FinishReason::Length));
    assert_eq!((answer.tokens.len(), answer.usage().completion_tokens), (5, 5));
}

/// SwiftLM#126, llama.cpp#9867: stop text over tokens must not leak, a false start must not get lost.
#[test]
fn swiftlm_126_stop_strings_over_token_boundaries() {
    let pieces: [&[u8]; 4] = [b"one <", b"/en", b"d> two", b"d two"];
    let (first, stop) = (FIRST_PIECE, vec!["</end>".to_string()]);
    let house = House::replying(&[first, first + 1, first + 2], &pieces);
    let answer = house.answer(GenerateRequest { stop: stop.clone(), ..ask("x", 50) });
    assert_eq!((answer.text.as_str(), answer.reason()), ("one ", FinishReason::Stop));
    // Three tokens were generated; the one that the stop string cuts into is listed, those behind the cut are not.
    assert_eq!((answer.usage().completion_tokens, answer.tokens.len()), (3, 1));

    let house = House::replying(&[first, first + 1, first + 3], &pieces);
    let answer = house.answer(GenerateRequest { stop: stop.clone(), ..ask("x", 50) });
    assert_eq!((answer.text.as_str(), answer.reason()), ("one </end two", FinishReason::Stop));
    // The budget ends within a possible stop string: what was held back comes out.
    let answer = house.answer(GenerateRequest { stop, ..ask("x", 2) });
    assert_eq!((answer.text.as_str(), answer.reason()), ("one </en", FinishReason::Length));
    assert_eq!(answer.tokens.len(), 2);
}

/// sglang#31599: text after a stop leaked when the budget check came first.
#[test]
fn sglang_31599_stop_and_budget_at_the_same_token() {
    let house = House::replying(&ids("abc"), &[]);
    let answer = house.answer(GenerateRequest { stop: vec!["c".into()], ..ask("x", 3) });
    assert_eq!((answer.text.as_str(), answer.reason()), ("ab", FinishReason::Stop));
}

/// unslothai/llama.cpp#202, ferrox#124: invalid and incomplete UTF-8 in the output.
#[test]
fn invalid_utf8_becomes_replacement_characters() {
    let emoji: Vec<i32> = "\u{1f3d6}".bytes().map(i32::from).collect();
    let reply = [vec![0x61, 0xff, 0x62], emoji.clone(), emoji[..2].to_vec()].concat();
    let house = House::replying(&reply, &[]);
    let answer = house.answer(ask("x", 100));
    assert_eq!(answer.text, "a\u{fffd}b\u{1f3d6}\u{fffd}");
    assert_eq!(answer.tokens.len(), 9);
    let joined: Vec<u8> = answer.tokens.iter().flat_map(|token| token.bytes.clone()).collect();
    assert_eq!(String::from_utf8_lossy(&joined), answer.text);
}

#[test]
fn zero_tokens_start_and_end_without_a_step() {
    let house = House::plain(1, 16, 8);
    let answer = house.answer(ask("abc", 0));
    assert_eq!((answer.started, answer.text.as_str(), answer.reason()), (Some(3), "", FinishReason::Length));
    assert_eq!((answer.usage().completion_tokens, house.probe.steps()), (0, 0));
    // Even when the prompt fills the whole context.
    assert_eq!(house.answer(ask(&"a".repeat(16), 0)).reason(), FinishReason::Length);
    house.assert_empty();
}

#[test]
fn a_request_may_use_the_whole_context_and_no_more() {
    let house = House::plain(2, 16, 8);
    let prompt = "a".repeat(15);
    assert_eq!(house.answer(ask(&prompt, 50)).text, expected(&prompt, 1));
    let open_end = GenerateRequest { max_tokens: None, ..ask("ab", 0) };
    let answer = house.answer(open_end);
    assert_eq!((answer.text.clone(), answer.reason()), (expected("ab", 14), FinishReason::Length));
    let error = house.handle.submit(ask(&"a".repeat(16), 1)).unwrap_err();
    assert_eq!(error, ServeError::ContextLength { n_prompt_tokens: 16, n_ctx: 16 });
    house.assert_empty();
}

#[test]
fn the_limit_per_request_is_the_lanes_share_unless_set() {
    let text = FakeText::new();
    let limit = |options| {
        let engine = FakeEngine::new(&text, 4, 64, 8);
        House::open(engine, text.clone(), options).handle.model().unwrap().n_ctx
    };
    assert_eq!(limit(ServeOptions::default()), 16);
    assert_eq!(limit(ServeOptions { lanes: Some(2), ..ServeOptions::default() }), 32);
    assert_eq!(limit(ServeOptions { ctx_per_request: Some(40), ..ServeOptions::default() }), 40);
    assert_eq!(limit(ServeOptions { ctx_per_request: Some(400), ..ServeOptions::default() }), 64);
}

/// llama.cpp#5246 (empty prompt), vllm#35231 (negative ids) and others: refused by field, and the server lives on.
#[test]
fn invalid_requests_are_refused_before_they_start() {
    let house = House::plain(1, 64, 8);
    let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    let cases = [
        ("prompt", GenerateRequest { prompt: Vec::new(), ..ask("", 1) }),
        ("prompt", GenerateRequest { prompt: vec![97, -1], ..ask("", 1) }),
        ("prompt", GenerateRequest { prompt: vec![258], ..ask("", 1) }),
        ("stop", GenerateRequest { stop: vec!["a".into(), String::new()], ..ask("a", 1) }),
        ("top_p", GenerateRequest { sampling, ..ask("a", 1) }),
    ];
    for (param, request) in cases {
        let error = house.handle.submit(request).unwrap_err();
        assert_eq!((error.class(), error.param()), (ErrorClass::InvalidRequest, Some(param)));
    }
    assert_eq!(house.handle.totals().started, 0);
    assert_eq!(house.answer(ask("a", 3)).text, expected("a", 3));
}

/// The logits of the fake engine after `history`, by running it alone.
fn logits_after(history: &[i32]) -> Vec<f32> {
    use crate::stage::{Row, SeqId, StageBatch, StageEngine, StageInput, StageOutput};
    let mut engine = FakeEngine::new(&FakeText::new(), 1, 64, 64);
    let row = |pos| Row { seq: SeqId(0), pos, output: pos as usize + 1 == history.len() };
    let rows: Vec<Row> = (0..history.len() as u32).map(row).collect();
    match engine.forward(&StageBatch::new(StageInput::Tokens(history), &rows)).unwrap() {
        StageOutput::Logits(logits) => logits.to_vec(),
        StageOutput::Hidden(_) => unreachable!(),
    }
}

fn assert_scored(token: &TokenOut, history: &[i32], n: usize) {
    let logits = logits_after(history);
    let norm = LogSoftmax::new(&logits);
    assert_eq!(token.logprob, Some(norm.log_prob(logits[token.id as usize])));
    let mut best: Vec<(i32, f32)> = (0..).zip(logits.iter().map(|&logit| norm.log_prob(logit))).collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1));
    assert_eq!(token.top, best[..n]);
}

#[test]
fn log_probabilities_of_generated_tokens() {
    let house = House::plain(2, 64, 8);
    for n in [0, 3] {
        let answer = house.answer(GenerateRequest { logprobs: Some(n), ..ask("hi", 4) });
        let mut history = ids("hi");
        for token in &answer.tokens {
            assert_scored(token, &history, usize::from(n));
            history.push(token.id);
        }
        assert_eq!(text_of(&history[2..]), answer.text);
    }
}

#[test]
fn log_probabilities_ignore_bias_and_temperature() {
    let house = House::plain(1, 64, 8);
    let sampling = SamplingParams { temperature: 0.0, logit_bias: vec![(65, 100.0)], ..SamplingParams::default() };
    let answer = house.answer(GenerateRequest { logprobs: Some(1), sampling, ..ask("hi", 1) });
    assert_eq!(answer.text, "A");
    assert_scored(&answer.tokens[0], &ids("hi"), 1);
}

/// vllm#2706, #2995: `echo` with `max_tokens: 0` crashed.
#[test]
fn prompt_log_probabilities_in_any_chunking() {
    let prompt = "a prompt of some length, longer than a few chunks of rows that a step may hold, much longer in fact";
    for (n_batch, max_tokens) in [(3, 2), (512, 2), (3, 0), (512, 0)] {
        let house = House::plain(2, 512, n_batch);
        let request = GenerateRequest { prompt_logprobs: true, logprobs: Some(2), ..ask(prompt, max_tokens) };
        let answer = house.answer(request);
        let scored = answer.prompt.as_ref().unwrap();
        assert_eq!(scored.iter().map(|token| token.id).collect::<Vec<_>>(), ids(prompt));
        assert_eq!((scored[0].logprob, scored[0].top.len()), (None, 0));
        let history = ids(prompt);
        for place in [1, 2, 40, 70, scored.len() - 1] {
            if place < 64 {
                assert_scored(&scored[place], &history[..place], 2);
            }
            assert!(scored[place].logprob.is_some());
        }
        assert_eq!(answer.text, expected(prompt, max_tokens as usize));
        house.assert_empty();
    }
    let house = House::plain(1, 16, 4);
    let answer = house.answer(GenerateRequest { prompt_logprobs: true, ..ask("a", 0) });
    assert_eq!((answer.prompt.unwrap().len(), house.probe.steps()), (1, 0));
}

#[test]
fn penalties_see_the_prompt() {
    // Every token of the prompt is penalized, so the first of two equal candidates loses when the prompt holds it.
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 1, 64, 8).with_rule(|_| 97);
    let house = House::open(engine, text, roomy());
    let sampling = SamplingParams { frequency_penalty: 2.0, ..SamplingParams::greedy() };
    let request = |prompt: &str| GenerateRequest { sampling: sampling.clone(), ..ask(prompt, 1) };
    assert_eq!(house.answer(request("bcd")).text, "a");
    assert_ne!(house.answer(request("aaaaaa")).text, "a");
}

#[test]
fn control_tokens_in_the_prompt_are_tokens_like_others() {
    let house = House::plain(1, 64, 8);
    let prompt = vec![BOS, 97];
    let answer = house.answer(GenerateRequest { prompt: prompt.clone(), ..ask("", 3) });
    assert_eq!(answer.text, text_of(&testing::answer(&prompt, 3)));
}

/// A vocabulary that has no samplers.
struct NoSampler(FakeText);

impl TextModel for NoSampler {
    fn n_vocab(&self) -> u32 {
        self.0.n_vocab()
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>, TextError> {
        self.0.tokenize(text, add_special, parse_special)
    }

    fn piece(&self, token: i32, render_special: bool) -> Vec<u8> {
        self.0.piece(token, render_special)
    }

    fn is_eog(&self, token: i32) -> bool {
        self.0.is_eog(token)
    }

    fn bos(&self) -> Option<i32> {
        self.0.bos()
    }

    fn sampler(&self, _: &SamplingParams) -> Result<Box<dyn Sampler>, TextError> {
        Err(TextError::Sampler("none here".into()))
    }
}

#[test]
fn a_sampler_that_cannot_be_built_fails_its_request_before_it_starts() {
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 1, 64, 8);
    let (handle, _) = spawn(Box::new(engine), Arc::new(NoSampler(text)), card(), roomy()).unwrap();
    let hot = GenerateRequest { sampling: SamplingParams::default(), ..ask("a", 3) };
    let answer = collect(handle.submit(hot).unwrap());
    assert_eq!((answer.started, answer.error.map(|error| error.class())), (None, Some(ErrorClass::InvalidRequest)));
    // Greedy decoding needs none.
    assert_eq!(collect(handle.submit(ask("a", 3)).unwrap()).text, expected("a", 3));
    assert_eq!(handle.totals().finished(FinishReason::Error), 1);
}
