//! Rows of earlier requests at the beginning of others.

use proptest::prelude::*;

use super::*;
use crate::{
    policy::Path,
    spec::{Speculation, SpeculationKind},
    stage::{Pieces, SeqId},
    telemetry,
};

const UNIT: u32 = 4;

fn caching(bytes: u64) -> ServeOptions {
    ServeOptions { prefix_cache_bytes: bytes, ..roomy() }
}

fn engine(lanes: u32, n_ctx: u32) -> FakeEngine {
    FakeEngine::new(&FakeText::new(), lanes, n_ctx, 64).parting(Pieces { unit: UNIT, most: 16 }, UNIT)
}

fn house(lanes: u32, n_ctx: u32) -> House {
    House::open(engine(lanes, n_ctx), FakeText::new(), caching(1 << 20))
}

fn gated(lanes: u32) -> (House, Gate) {
    let (engine, gate) = engine(lanes, 4096).gated();
    (House::open(engine, FakeText::new(), caching(1 << 20)), gate)
}

/// The answer, checked, and how much of the prompt was there already.
fn cached(house: &House, request: GenerateRequest) -> u32 {
    let (prompt, n) = (request.prompt.clone(), request.max_tokens.unwrap() as usize);
    let answer = house.answer(request);
    assert_eq!(answer.text, text_of(&testing::answer(&prompt, n)));
    answer.usage().cached_tokens
}

/// llama.cpp#21762: a prompt that was wholly cached crashed the server. The last piece is always computed.
#[test]
fn llama_21762_the_same_prompt_twice() {
    let house = house(2, 4096);
    for (prompt, expected) in [("0123456789abcdef", 12), ("0123456789abcde", 8), ("0123456", 0), ("x", 0)] {
        let ask = || ask(prompt, 3);
        house.answer(ask());
        assert_eq!(cached(&house, ask()), expected, "{prompt}");
        assert_eq!(cached(&house, ask()), expected, "{prompt}");
    }
}

#[test]
fn the_longest_common_beginning_is_taken_over() {
    let house = house(4, 4096);
    let begin = "a beginning of some length that many prompts share: ";
    assert_eq!(cached(&house, ask(&format!("{begin}one and only"), 5)), 0);
    assert_eq!(cached(&house, ask(&format!("{begin}two"), 5)), 48);
    assert_eq!(cached(&house, ask(&format!("{begin}one and all"), 5)), 56);
    assert_eq!(cached(&house, ask("another beginning", 5)), 0);
    // A text that goes on behind an answer: the rows of the prompt are of use, those of the answer are not.
    let first = "the first turn of it";
    let so_far = format!("{first}{}", expected(first, 12));
    cached(&house, ask(first, 12));
    assert_eq!(cached(&house, ask(&format!("{so_far} and then"), 4)), 20);
}

/// llama.cpp#27148, ATLAS#87: sessions got rows of other sessions.
#[test]
fn llama_27148_no_session_sees_rows_of_another() {
    let house = house(4, 4096);
    let turn = |session: usize, turn: usize| {
        format!("{}{session} says its marker word {turn}", "s".repeat(24)).repeat(turn + 1)
    };
    for round in 0..6 {
        let running: Vec<_> = (0..16).map(|session| (session, house.submit(ask(&turn(session, round), 9)))).collect();
        for (session, events) in running {
            assert_eq!(collect(events).text, expected(&turn(session, round), 9), "session {session}, turn {round}");
        }
    }
}

#[test]
fn who_shares_a_long_beginning_waits_for_whoever_reads_it_first() {
    let (house, gate) = gated(3);
    let prompt = "p".repeat(40);
    let first = house.submit(ask(&prompt, 2));
    gate.batch();
    let others = [house.submit(ask(&prompt, 2)), house.submit(ask(&format!("{}q", "p".repeat(30)), 2))];
    gate.open();
    let rows = |batch: Vec<(crate::stage::Row, i32)>| -> Vec<u32> {
        (0..3).map(|seq| batch.iter().filter(|(row, _)| row.seq == SeqId(seq)).count() as u32).collect()
    };
    assert_eq!(rows(gate.step()), [16, 0, 0], "only the leader reads");
    assert_eq!(rows(gate.step()), [8, 0, 7], "28 rows of 31 were there after two pieces");
    drop(gate);
    let cached = others.map(|events| {
        let answer = collect(events);
        (answer.text.clone(), answer.usage().cached_tokens)
    });
    assert_eq!(cached[0], (expected(&prompt, 2), 36));
    assert_eq!(cached[1], (expected(&format!("{}q", "p".repeat(30)), 2), 24));
    assert_eq!(collect(first).usage().cached_tokens, 0);
}

#[test]
fn a_leader_that_leaves_holds_up_nobody() {
    let (house, gate) = gated(2);
    let prompt = "p".repeat(64);
    let first = house.submit(ask(&prompt, 2));
    gate.batch();
    let second = house.submit(ask(&prompt, 2));
    gate.open();
    gate.batch();
    drop(first);
    gate.open();
    drop(gate);
    let answer = collect(second);
    assert_eq!((answer.text.clone(), answer.usage().cached_tokens), (expected(&prompt, 2), 32), "what it has left");
}

/// mesh-llm PR#661: rows kept for others stood in the way of a request.
#[test]
fn mesh_661_kept_rows_go_before_a_request_has_to_wait() {
    let house = house(4, 100);
    for prompt in ["a", "b", "c", "d"] {
        cached(&house, ask(&prompt.repeat(24), 2));
    }
    assert_eq!(house.probe.kv_rows(), 96);
    assert_eq!(cached(&house, ask(&"x".repeat(90), 10)), 0);
    assert!(house.probe.kv_rows() <= 100);
    // They are in host memory now.
    assert_eq!(cached(&house, ask(&"a".repeat(24), 2)), 20);
}

#[test]
fn rows_without_a_lane_go_to_host_memory_and_back() {
    let recorder = telemetry::local().unwrap();
    let text = FakeText::new();
    let small = engine(1, 4096);
    let (handle, starter) = ServeHandle::loading(caching(1200));
    let serve = prepare(&starter, small, text, card());
    let requests = ["a", "b", "a", "c", "d", "b"].map(|prompt| handle.submit(ask(&prompt.repeat(40), 1)).unwrap());
    drop((handle, starter));
    metrics::with_local_recorder(&recorder, serve);
    let cached: Vec<u32> = requests.into_iter().map(|events| collect(events).usage().cached_tokens).collect();
    // Two entries fit: `a` comes back, `b` has made room for it again when it is asked for.
    assert_eq!(cached, [0, 0, 36, 0, 0, 0]);
    let scrape = recorder.handle().render();
    for (series, value) in [
        ("skippy_prefix_cache_lookups_total", 6),
        ("skippy_prefix_cache_hits_total", 1),
        ("skippy_prompt_tokens_total{source=\"cached\"}", 36),
        ("skippy_prompt_tokens_total{source=\"computed\"}", 6 * 40 - 36),
        ("skippy_prefix_cache_kv_cells", 40),
    ] {
        assert!(scrape.lines().any(|line| line == format!("{series} {value}")), "{series} {value}: {scrape}");
    }
}

#[test]
fn who_does_not_want_it_gets_nothing_and_leaves_nothing() {
    let house = house(2, 4096);
    let private = || GenerateRequest { cache_prompt: false, ..ask("a private prompt of length", 2) };
    assert_eq!(cached(&house, private()), 0);
    assert_eq!(house.probe.kv_rows(), 0);
    assert_eq!(cached(&house, ask("a private prompt of length", 2)), 0);
    assert_eq!(cached(&house, private()), 0);
    // Every row's logits are needed, but others may begin with the rows.
    let scored = GenerateRequest { prompt_logprobs: true, ..ask("some prompt with log-probs", 2) };
    assert_eq!(cached(&house, scored.clone()), 0);
    assert_eq!(cached(&house, scored), 0);
    assert_eq!(cached(&house, ask("some prompt with log-probs", 2)), 20);
}

#[test]
fn rows_that_another_attention_path_has_made_are_others() {
    let house = house(4, 4096);
    let forced = |path| GenerateRequest { path, ..ask("a prompt of some length", 2) };
    assert_eq!(cached(&house, forced(None)), 0);
    assert_eq!(cached(&house, forced(Some(Path::Dense))), 0);
    assert_eq!(cached(&house, forced(Some(Path::Dense))), 16);
    assert_eq!(cached(&house, forced(Some(Path::Fallback))), 0);
    assert_eq!(cached(&house, forced(None)), 16);
}

#[test]
fn rows_that_the_draft_head_has_not_followed_are_of_no_use_to_drafts() {
    let engine = engine(4, 4096).drafting(|i| i % 2 == 0);
    let speculating = ModelCard {
        speculation: Speculation {
            strategy: "mtp".into(),
            kind: SpeculationKind::NativeMtp { depth: 1 },
            ..Speculation::disabled()
        },
        ..card()
    };
    let house = House::with_card(engine, FakeText::new(), speculating, caching(1 << 20));
    let plain = || GenerateRequest { without_speculation: true, ..ask("a prompt of some length", 9) };
    let drafted = || ask("a prompt of some length", 9);
    assert_eq!(cached(&house, plain()), 0);
    assert_eq!(cached(&house, drafted()), 0, "no rows that the head has seen");
    assert_eq!(cached(&house, drafted()), 16);
    assert_eq!(cached(&house, plain()), 16, "these do for whoever does not draft");
    let answer = house.answer(drafted());
    assert!(answer.timings().drafts.is_some_and(|drafts| drafts.accepted > 0), "{answer:?}");
}

#[test]
fn rows_that_cannot_be_had_are_computed() {
    let house = house(2, 4096);
    let prompt = "a prompt of some length that is had".to_owned();
    let other = format!("{}other end of it all", &prompt[..12]);
    cached(&house, ask(&prompt, 2));
    house.probe.inject(testing::Fault::Part);
    assert_eq!(cached(&house, ask(&other, 2)), 0);
    assert_eq!(cached(&house, ask(&other, 2)), 24);
    // A failed step leaves nothing that can be trusted.
    house.probe.inject(testing::Fault::Engine);
    assert!(house.answer(ask(&prompt, 2)).error.is_some());
    assert_eq!(house.probe.kv_rows(), 0);
    assert_eq!(cached(&house, ask(&prompt, 2)), 0);
}

/// Kept rows are nobody's: an engine that runs out of room drops them and goes on.
#[test]
fn an_engine_out_of_rows_lets_go_of_kept_ones() {
    let house = house(2, 4096);
    cached(&house, ask("a prompt of some length", 2));
    house.probe.inject(testing::Fault::KvFull);
    assert_eq!(cached(&house, ask("quite another", 2)), 0);
    assert_eq!(house.probe.kv_rows(), 12);
}

#[test]
fn an_engine_that_cannot_part_sequences_computes_everything() {
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, 2, 4096, 64).parting(Pieces { unit: 1, most: 64 }, 0);
    let house = House::open(engine, text, caching(1 << 20));
    for _ in 0..3 {
        assert_eq!(cached(&house, ask("a prompt of some length", 2)), 0);
    }
    house.assert_empty();
}

/// llama.cpp#24496: whoever leaves while waiting for a leader, reading or generating leaves the lane free.
#[test]
fn a_storm_of_shared_beginnings_leaves_every_lane_free() {
    let house = house(8, 1 << 14);
    for i in 0..200usize {
        let mut events = house.submit(ask(&"storm ".repeat(1 + i % 40), 1000));
        for _ in 0..i % 4 {
            events.blocking_recv();
        }
    }
    assert_eq!(cached(&house, ask(&"storm ".repeat(10), 3)), 56);
    let status = house.handle.status();
    assert_eq!((status.lanes_busy, status.queued, status.kv_used), (0, 0, 0));
    assert_eq!(house.handle.totals().started, house.handle.totals().finished_in_all());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// vllm#54490: caching changed greedy output. Whatever the order, the sharing and the room, every text is what a cold
    /// server answers.
    #[test]
    fn vllm_54490_hot_and_cold_say_the_same(
        lanes in 1u32..5,
        bytes in prop::sample::select(vec![1u64, 500, 2000, 1 << 20]),
        drafts: bool,
        requests in prop::collection::vec((0usize..4, 0usize..60, 0usize..4, 1u32..12, any::<bool>(), any::<bool>()), 1..30),
    ) {
        let engine = engine(lanes, 400);
        let (engine, speculation) = match drafts {
            true => (engine.drafting(|i| i % 3 > 0), Speculation { strategy: "mtp".into(), kind: SpeculationKind::NativeMtp { depth: 1 }, ..Speculation::disabled() }),
            false => (engine, Speculation::disabled()),
        };
        let house = House::with_card(engine, FakeText::new(), ModelCard { speculation, ..card() }, caching(bytes));
        let begin = ["", "aaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbb", "cccccccccc"];
        let mut running = Vec::new();
        for (which, more, end, n, plain, leaves) in requests {
            let prompt = format!("{}{}{end}", begin[which], "m".repeat(more));
            let events = house.submit(GenerateRequest { without_speculation: plain, ..ask(&prompt, n) });
            if !leaves {
                running.push((events, prompt, n));
            }
        }
        for (events, prompt, n) in running {
            let answer = collect(events);
            prop_assert_eq!(&answer.text, &expected(&prompt, n as usize), "{:?}", answer);
        }
        // Whoever left has been let go of by the time somebody else is through.
        prop_assert_eq!(house.answer(ask("calm", 3)).text, expected("calm", 3));
        let status = house.handle.status();
        prop_assert_eq!((status.lanes_busy, status.queued, status.kv_used), (0, 0, 0));
    }
}
