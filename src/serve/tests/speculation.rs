//! Drafts: they change how many passes an answer takes, and nothing else.

use proptest::prelude::*;

use super::{
    testing::{Call, EOG},
    *,
};
use crate::{
    spec::Speculation,
    stage::{DraftRow, Purpose, SeqId, Span},
    telemetry,
};

pub(super) type Hits = fn(u32) -> bool;

/// When the draft head is right.
pub(super) const PATTERNS: [Hits; 5] = [|_| true, |_| false, |i| i % 2 == 0, |i| i % 3 != 2, |i| i * i % 7 < 3];

pub(super) fn speculating() -> ModelCard {
    ModelCard { speculation: Speculation::native_mtp(), ..card() }
}

/// A server that drafts; any request may use all KV rows.
pub(super) fn drafting(lanes: u32, n_ctx: u32, n_batch: u32, hits: impl Fn(u32) -> bool + Send + 'static) -> House {
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, lanes, n_ctx, n_batch).drafting(hits);
    House::with_card(engine, text, speculating(), roomy())
}

pub(super) fn gated(
    lanes: u32,
    n_ctx: u32,
    n_batch: u32,
    hits: impl Fn(u32) -> bool + Send + 'static,
) -> (House, Gate) {
    let text = FakeText::new();
    let (engine, gate) = FakeEngine::new(&text, lanes, n_ctx, n_batch).drafting(hits).gated();
    (House::with_card(engine, text, speculating(), roomy()), gate)
}

/// Answers every prompt with `reply`.
fn drafting_reply(reply: &str, hits: Hits) -> House {
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 2, 256, 16).replying(ids(reply)).drafting(hits);
    House::with_card(engine, text, speculating(), roomy())
}

pub(super) fn plainly(request: &GenerateRequest) -> GenerateRequest {
    GenerateRequest { without_speculation: true, ..request.clone() }
}

/// Everything that a client can see but times.
pub(super) fn seen(answer: &Answer) -> (&str, &[TokenOut], Option<&[TokenOut]>, FinishReason, Usage) {
    (&answer.text, &answer.tokens, answer.prompt.as_deref(), answer.reason(), answer.usage())
}

pub(super) fn drafts(answer: &Answer) -> Drafts {
    answer.timings().drafts.unwrap()
}

pub(super) fn draft_calls(house: &House) -> Vec<Vec<DraftRow>> {
    let calls = house.probe.calls().into_iter();
    calls.filter_map(|call| if let Call::Draft(rows) = call { Some(rows) } else { None }).collect()
}

pub(super) fn spans(house: &House) -> Vec<Span> {
    let calls = house.probe.calls().into_iter();
    calls.filter_map(|call| if let Call::Forward(spans) = call { Some(spans) } else { None }).flatten().collect()
}

#[test]
fn an_answer_pass_by_pass() {
    let house = drafting(1, 64, 8, |i| i != 1);
    let answer = house.answer(ask("abc", 7));
    assert_eq!(answer.text, expected("abc", 7));
    let x = ids(&answer.text);
    let seq = SeqId(0);
    let forward = |purpose| Call::Forward(vec![Span { seq, purpose, path: None, drafts: true }]);
    let draft = |token| Call::Draft(vec![DraftRow { seq, token }]);
    let wanted = [
        forward(Purpose::Prefill { prompt: 3 }),
        // The guess of x[1] is right: rows 3 and 4 stay, x[1] and x[2] are chosen.
        draft(x[0]),
        forward(Purpose::Verify),
        // That of x[3] is wrong: x[3] is chosen from row 5, row 6 goes.
        draft(x[2]),
        forward(Purpose::Verify),
        Call::Truncate(seq, 6),
        draft(x[3]),
        forward(Purpose::Verify),
        // One token is left: nothing to draft for.
        forward(Purpose::Decode),
    ];
    assert_eq!(house.probe.calls(), wanted);
    assert_eq!(drafts(&answer), Drafts { drafts: 3, accepted: 2, forwards: 4 });
    house.assert_empty();
}

#[test]
fn answers_are_the_same_with_and_without_drafts() {
    let prompts: Vec<String> = (1..60).map(|n| "some words to read ".repeat(n % 7 + 1).split_off(n % 17)).collect();
    for (hits, n_batch) in PATTERNS.into_iter().zip([3, 8, 17, 32, 64]) {
        let house = drafting(3, 1024, n_batch, hits);
        let request = |i: usize, prompt: &str| GenerateRequest {
            sampling: match i % 3 {
                0 => SamplingParams::greedy(),
                1 => SamplingParams { temperature: 20.0, seed: Some(i as u64), ..SamplingParams::default() },
                _ => SamplingParams {
                    temperature: 1.0,
                    top_k: 20,
                    seed: Some(7),
                    frequency_penalty: 1.5,
                    logit_bias: vec![(65, 9.5)],
                    ..SamplingParams::default()
                },
            },
            logprobs: i.is_multiple_of(2).then_some(3),
            prompt_logprobs: i.is_multiple_of(5),
            stop: if i.is_multiple_of(4) { vec!["e".into(), "ab".into()] } else { Vec::new() },
            ..ask(prompt, 1 + (i as u32 * 7) % 41)
        };
        let requests: Vec<_> = prompts.iter().enumerate().map(|(i, prompt)| request(i, prompt)).collect();
        let with: Vec<_> = requests.iter().map(|request| house.submit(request.clone())).collect();
        let without: Vec<_> = requests.iter().map(|request| house.submit(plainly(request))).collect();
        for (i, (with, without)) in with.into_iter().zip(without).enumerate() {
            let (with, without) = (collect(with), collect(without));
            assert_eq!(seen(&with), seen(&without), "request {i}");
            assert_eq!(without.timings().drafts, None);
            assert_eq!(with.timings().drafts.is_some(), requests[i].max_tokens > Some(2));
        }
        assert!(n_batch < 6 || !draft_calls(&house).is_empty());
        house.assert_empty();
    }
}

#[test]
fn right_drafts_save_passes_and_wrong_ones_cost_none() {
    let house = drafting(1, 256, 8, |_| true);
    let answer = house.answer(ask("a", 41));
    assert_eq!(drafts(&answer), Drafts { drafts: 20, accepted: 20, forwards: 20 });
    assert_eq!(house.probe.steps(), 21);
    let house = drafting(1, 256, 8, |_| false);
    let answer = house.answer(ask("a", 11));
    assert_eq!(drafts(&answer), Drafts { drafts: 9, accepted: 0, forwards: 10 });
    assert_eq!(house.probe.steps(), 11);
}

#[test]
fn stops_inside_a_window_end_the_text_there() {
    // The first token comes from the prompt; windows then hold (b, c), (d, e) and so on.
    let cases: [(&str, &str, usize); 6] = [
        // The first or the second token of a window ends the stop string, or one of the next window.
        ("b", "a", 2),
        ("c", "ab", 3),
        ("bc", "a", 3),
        ("cd", "ab", 4),
        ("de", "abc", 5),
        ("fgh", "abcde", 8),
    ];
    for hits in PATTERNS {
        let house = drafting_reply("abcdefgh", hits);
        for (stop, text, n) in cases {
            let request = GenerateRequest { stop: vec![stop.into()], logprobs: Some(1), ..ask("x", 20) };
            let (with, without) = (house.answer(request.clone()), house.answer(plainly(&request)));
            assert_eq!(seen(&with), seen(&without));
            assert_eq!((with.text.as_str(), with.reason()), (text, FinishReason::Stop), "{stop}");
            assert_eq!(with.usage().completion_tokens as usize, n, "{stop}");
        }
        house.assert_empty();
    }
}

#[test]
fn the_end_of_the_text_inside_a_window_ends_it_there() {
    for hits in PATTERNS {
        for reply in ["a", "ab", "abc", "abcd"] {
            let house = drafting_reply(reply, hits);
            let answer = house.answer(ask("x", 20));
            assert_eq!((answer.text.as_str(), answer.reason()), (reply, FinishReason::Stop));
            assert_eq!(answer.usage().completion_tokens as usize, reply.len() + 1);
            house.assert_empty();
        }
    }
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 1, 64, 8).with_rule(|history| if history.len() % 2 == 0 { EOG } else { 97 });
    let house = House::with_card(engine.drafting(|_| true), text, speculating(), roomy());
    let answer = house.answer(GenerateRequest { ignore_eos: true, ..ask("x", 9) });
    assert_eq!((answer.text.as_str(), answer.usage().completion_tokens), ("aaaaa", 9));
    assert_eq!(drafts(&answer), Drafts { drafts: 4, accepted: 4, forwards: 4 });
}

#[test]
fn the_budget_is_kept_to_the_token_and_short_ones_never_draft() {
    for hits in PATTERNS {
        let house = drafting(1, 64, 8, hits);
        for n in 1..12 {
            let answer = house.answer(ask("abc", n));
            assert_eq!((answer.text, answer.done.unwrap().0), (expected("abc", n as usize), FinishReason::Length));
        }
        house.assert_empty();
    }
    let house = drafting(1, 64, 8, |_| true);
    for n in [0, 1, 2] {
        assert_eq!(house.answer(ask("abc", n)).timings().drafts, None);
    }
    assert!(draft_calls(&house).is_empty());
    assert!(spans(&house).iter().all(|span| !span.drafts));
    house.answer(ask("abc", 3));
    assert_eq!(draft_calls(&house).len(), 1);
}

/// The engine refuses rows beyond its cache, so drafts that were not promised would fail a request here.
#[test]
fn drafts_stay_within_the_rows_promised_up_to_the_end_of_the_context() {
    for hits in PATTERNS {
        let house = drafting(4, 64, 16, hits);
        let open_end = |prompt: &str| GenerateRequest { max_tokens: None, ..ask(prompt, 0) };
        let prompts: Vec<String> = (1..30).map(|n| "x".repeat(2 * n)).collect();
        let alone: Vec<_> = prompts.iter().map(|prompt| house.submit(open_end(prompt))).collect();
        // Four that fill the cache to the last row together.
        let fits: Vec<_> = (0..12).map(|_| house.submit(ask("four", 13))).collect();
        for (events, prompt) in alone.into_iter().zip(&prompts) {
            let answer = collect(events);
            assert_eq!((answer.reason(), answer.text), (FinishReason::Length, expected(prompt, 64 - prompt.len())));
        }
        assert!(fits.into_iter().all(|events| collect(events).text == expected("four", 13)));
        house.assert_empty();
    }
}

#[test]
fn a_request_that_loses_by_drafting_stops() {
    let recorder = telemetry::local().unwrap();
    metrics::with_local_recorder(&recorder, || {
        let (handle, starter) = ServeHandle::loading(roomy());
        let text = FakeText::new();
        let engine = FakeEngine::new(&text, 2, 256, 8).drafting(|_| false);
        let probe = engine.probe();
        let serve = prepare(&starter, engine, text, speculating());
        let events = handle.submit(ask("abc", 40)).unwrap();
        drop((handle, starter));
        serve();
        let answer = collect(events);
        assert_eq!(answer.text, expected("abc", 40));
        assert_eq!(drafts(&answer), Drafts { drafts: 16, accepted: 0, forwards: 39 });
        // From then on the draft head need not follow.
        let spans = probe.calls().into_iter().filter_map(|call| match call {
            Call::Forward(spans) => Some(spans[0]),
            _ => None,
        });
        let follows: Vec<bool> = spans.map(|span| span.drafts).collect();
        assert_eq!(follows, [[true; 17].as_slice(), &[false; 23]].concat());
    });
    let scrape = recorder.handle().render();
    for line in [
        "skippy_speculation_drafts_total{position=\"1\"} 16",
        "skippy_speculation_accepted_total{position=\"1\"} 0",
        "skippy_speculation_stopped_total{reason=\"low_acceptance\"} 1",
        "skippy_speculation_stopped_total{reason=\"bad_logits\"} 0",
        "skippy_speculation_forwards_total 39",
        "skippy_speculation_tokens_total 39",
        // The last one was made before the request had counted its losses.
        "skippy_draft_seconds_count 17",
        "skippy_engine_step_seconds_count{phase=\"verify\"} 16",
        "skippy_engine_step_seconds_count{phase=\"decode\"} 23",
        "skippy_engine_step_seconds_count{phase=\"prefill\"} 1",
        "skippy_generation_tokens_total 40",
    ] {
        assert!(scrape.lines().any(|other| other == line), "{line} is missing from\n{scrape}");
    }
}

/// Rows of a batch as (sequence, first position, count).
fn runs(batch: &[(crate::stage::Row, i32)]) -> Vec<(u32, u32, u32)> {
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for (row, _) in batch {
        match runs.last_mut() {
            Some((seq, _, n)) if *seq == row.seq.0 => *n += 1,
            _ => runs.push((row.seq.0, row.pos, 1)),
        }
    }
    runs
}

/// Twelve rows for three lanes: pieces of eight, so that one fits beside two windows.
#[test]
fn windows_and_pieces_of_prompts_share_a_batch() {
    let (house, gate) = gated(3, 1000, 12, |_| true);
    let a = house.submit(ask("aaa", 20));
    assert_eq!(runs(&gate.batch()), [(0, 0, 3)]);
    let b = house.submit(ask("bb", 20));
    let c = house.submit(ask(&"c".repeat(20), 9));
    gate.open();
    assert_eq!(runs(&gate.step()), [(0, 3, 2), (1, 0, 2), (2, 0, 8)]);
    assert_eq!(runs(&gate.step()), [(0, 5, 2), (1, 2, 2), (2, 8, 8)]);
    assert_eq!(runs(&gate.step()), [(0, 7, 2), (1, 4, 2), (2, 16, 4)]);
    assert_eq!(runs(&gate.step()), [(0, 9, 2), (1, 6, 2), (2, 20, 2)]);
    drop(gate);
    for (events, prompt, n) in [(a, "aaa", 20), (b, "bb", 20), (c, &"c".repeat(20), 9)] {
        assert_eq!(collect(events).text, expected(prompt, n));
    }
    // One question for all lanes in a step.
    let sizes: Vec<usize> = draft_calls(&house).iter().map(Vec::len).collect();
    assert_eq!(sizes[..4], [1, 2, 2, 3]);
    house.assert_empty();
}

#[test]
fn drafts_take_no_row_from_prompts_and_chosen_tokens() {
    // As many rows as lanes: room for a draft only while a lane is free.
    let (house, gate) = gated(3, 1000, 3, |_| true);
    let a = house.submit(ask("a", 30));
    gate.batch();
    let b = house.submit(ask("bbb", 9));
    gate.open();
    // Pieces of one row, and room for a draft beside them.
    assert_eq!(runs(&gate.step()), [(0, 1, 2), (1, 0, 1)]);
    assert_eq!(runs(&gate.step()), [(0, 3, 2), (1, 1, 1)]);
    assert_eq!(runs(&gate.step()), [(0, 5, 2), (1, 2, 1)]);
    // Room for one draft, not for two.
    assert_eq!(runs(&gate.batch()), [(0, 7, 2), (1, 3, 1)]);
    let c = house.submit(ask("c", 9));
    gate.open();
    assert_eq!(runs(&gate.step()), [(0, 9, 1), (1, 4, 1), (2, 0, 1)]);
    assert_eq!(runs(&gate.step()), [(0, 10, 1), (1, 5, 1), (2, 1, 1)]);
    drop(gate);
    for (events, prompt, n) in [(a, "a", 30), (b, "bbb", 9), (c, "c", 9)] {
        assert_eq!(collect(events).text, expected(prompt, n));
    }
    house.assert_empty();
}

#[test]
fn a_cancelled_request_leaves_nothing_of_its_window() {
    let (house, gate) = gated(2, 256, 16, |i| i % 2 == 0);
    let stays = house.submit(ask("aa", 20));
    gate.batch();
    let leaves = house.submit(ask("bbb", 20));
    gate.open();
    gate.step();
    assert_eq!(runs(&gate.batch())[1], (1, 3, 2));
    drop(leaves);
    let next = house.submit(ask("cccc", 9));
    gate.open();
    assert_eq!(runs(&gate.batch())[1], (1, 0, 4));
    drop(gate);
    assert_eq!(collect(next).text, expected("cccc", 9));
    assert_eq!(collect(stays).text, expected("aa", 20));
    house.assert_empty();
}

#[test]
fn a_request_may_do_without_drafts_among_others_that_have_them() {
    let house = drafting(2, 256, 16, |_| true);
    let (with, without) = (house.submit(ask("aa", 20)), house.submit(plainly(&ask("bb", 20))));
    let (with, without) = (collect(with), collect(without));
    assert_eq!((with.text.as_str(), without.text.as_str()), (&*expected("aa", 20), &*expected("bb", 20)));
    assert!(drafts(&with).accepted > 5);
    assert_eq!(without.timings().drafts, None);
    assert_eq!(spans(&house).iter().filter(|span| !span.drafts).count(), 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_drafts_give_the_same_answer(
        requests in prop::collection::vec(("[ab]{1,30}", 0u32..40, any::<Option<u64>>(), "[ -~]{1}"), 1..6),
        hits in prop::collection::vec(any::<bool>(), 1..20),
        lanes in 1u32..5,
        spare in 0u32..9,
    ) {
        let house = drafting(lanes, 4096, lanes + spare, move |i| hits[i as usize % hits.len()]);
        let request = |(prompt, n, seed, stop): &(String, u32, Option<u64>, String)| GenerateRequest {
            sampling: match seed {
                Some(_) => SamplingParams { temperature: 9.0, seed: *seed, ..SamplingParams::default() },
                None => SamplingParams::greedy(),
            },
            stop: vec![stop.clone()],
            logprobs: Some(2),
            ..ask(prompt, *n)
        };
        let requests: Vec<_> = requests.iter().map(request).collect();
        let with: Vec<_> = requests.iter().map(|request| house.submit(request.clone())).collect();
        let with: Vec<_> = with.into_iter().map(collect).collect();
        for (with, request) in with.iter().zip(&requests) {
            let without = house.answer(plainly(request));
            prop_assert_eq!(seen(with), seen(&without));
        }
        house.assert_empty();
    }
}
