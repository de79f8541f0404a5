//! Several requests at once: lanes, promises, order, cancellation.

use super::*;

/// Rows of a batch as (sequence, first position, count, rows that return logits).
fn runs(batch: &[(crate::stage::Row, i32)]) -> Vec<(u32, u32, u32, u32)> {
    let mut runs: Vec<(u32, u32, u32, u32)> = Vec::new();
    for (row, _) in batch {
        let output = u32::from(row.output);
        match runs.last_mut() {
            Some((seq, first, n, outputs)) if *seq == row.seq.0 && row.pos == *first + *n => {
                *n += 1;
                *outputs += output;
            }
            _ => runs.push((row.seq.0, row.pos, 1, output)),
        }
    }
    runs
}

/// Ten rows for four lanes: pieces of seven, so that one fits however many others decode.
#[test]
fn each_step_decodes_every_lane_and_reads_whole_pieces_of_prompts_in_turn() {
    let (house, gate) = House::gated(4, 1000, 10);
    let a = house.submit(ask("abc", 6));
    assert_eq!(runs(&gate.batch()), [(0, 0, 3, 1)]);
    let b = house.submit(ask(&"b".repeat(12), 2));
    gate.open();
    assert_eq!(runs(&gate.batch()), [(0, 3, 1, 1), (1, 0, 7, 0)]);
    let c = house.submit(ask(&"c".repeat(5), 2));
    let d = house.submit(ask(&"d".repeat(20), 2));
    gate.open();
    // C's turn; D's piece does not fit beside it. Then D's turn; B's rest does not fit.
    assert_eq!(runs(&gate.step()), [(0, 4, 1, 1), (2, 0, 5, 1)]);
    assert_eq!(runs(&gate.step()), [(0, 5, 1, 1), (2, 5, 1, 1), (3, 0, 7, 0)]);
    drop(gate);
    let prompts = ["abc".to_string(), "b".repeat(12), "c".repeat(5), "d".repeat(20)];
    for ((events, prompt), n) in [a, b, c, d].into_iter().zip(prompts).zip([6, 2, 2, 2]) {
        assert_eq!(collect(events).text, expected(&prompt, n));
    }
    house.assert_empty();
}

#[test]
fn greedy_text_is_the_same_alone_and_among_neighbours() {
    let house = House::plain(8, 4096, 32);
    let prompts: Vec<String> = (1..40).map(|n| "some words to read ".repeat(n).split_off(n)).collect();
    let length = |i: usize| 1 + (i * 7) % 23;
    let answers: Vec<_> =
        prompts.iter().enumerate().map(|(i, prompt)| house.submit(ask(prompt, length(i) as u32))).collect();
    for (i, (events, prompt)) in answers.into_iter().zip(&prompts).enumerate() {
        assert_eq!(collect(events).text, expected(prompt, length(i)), "request {i}");
    }
    house.assert_empty();
}

#[test]
fn seeded_text_is_the_same_alone_and_among_neighbours() {
    let hot = |seed| GenerateRequest {
        sampling: SamplingParams { temperature: 20.0, seed, ..SamplingParams::default() },
        ..ask("the same prompt", 30)
    };
    let alone = House::plain(1, 256, 32).answer(hot(Some(7))).tokens;
    let house = House::plain(8, 4096, 32);
    let seeds = [Some(1), Some(7), None, Some(2), None, Some(7), Some(3), None];
    let answers: Vec<_> = seeds.map(|seed| house.submit(hot(seed))).into_iter().map(collect).collect();
    assert_eq!(answers[1].tokens, alone);
    assert_eq!(answers[5].tokens, alone);
    for (i, j) in [(0, 1), (0, 3), (2, 4), (4, 7), (2, 7)] {
        assert_ne!(answers[i].tokens, answers[j].tokens, "{i} and {j}");
    }
}

/// llama.cpp#23652: with shared KV rows, one request's overflow aborted every parallel generation.
#[test]
fn llama_23652_promises_never_exceed_the_kv_rows() {
    let (house, gate) = House::gated(4, 40, 16);
    // Each may need 4 + 17 - 1 = 20 rows: two fit, the third waits although lanes are free.
    let first = house.submit(ask("aaaa", 17));
    let mut batch = gate.batch();
    let second = house.submit(ask("bbbb", 17));
    let third = house.submit(ask("cccc", 17));
    // A small one behind must not overtake.
    let small = house.submit(ask("d", 1));
    while !batch.iter().any(|(row, _)| row.pos == 19 && row.seq.0 == 0) {
        assert!(batch.iter().all(|(row, _)| row.seq.0 < 2), "{batch:?}");
        gate.open();
        batch = gate.batch();
        assert_eq!(house.handle.status().lanes_busy, 2);
        assert_eq!(house.handle.status().queued, 2);
    }
    drop(gate);
    for (events, prompt, n) in [(first, "aaaa", 17), (second, "bbbb", 17), (third, "cccc", 17), (small, "d", 1)] {
        assert_eq!(collect(events).text, expected(prompt, n));
    }
    house.assert_empty();
}

#[test]
fn many_full_size_requests_all_finish() {
    // llama.cpp#4185: a full cache led to an endless loop.
    let house = House::plain(4, 64, 8);
    let open_end = |prompt: &str| GenerateRequest { max_tokens: None, ..ask(prompt, 0) };
    let prompts: Vec<String> = (1..30).map(|n| "x".repeat(n)).collect();
    let answers: Vec<_> = prompts.iter().map(|prompt| house.submit(open_end(prompt))).collect();
    for (events, prompt) in answers.into_iter().zip(&prompts) {
        let answer = collect(events);
        assert_eq!((answer.reason(), answer.text), (FinishReason::Length, expected(prompt, 64 - prompt.len())));
    }
    house.assert_empty();
}

#[test]
fn a_full_queue_refuses_and_takes_again_when_there_is_room() {
    let text = FakeText::new();
    let (engine, gate) = FakeEngine::new(&text, 1, 64, 8).gated();
    let house = House::open(engine, text, ServeOptions { max_queue: Some(2), ..ServeOptions::default() });
    let running = house.submit(ask("a", 4));
    gate.batch();
    let waiting = house.submit(ask("b", 1));
    let gone = house.submit(ask("c", 1));
    assert_eq!(house.handle.submit(ask("d", 1)).unwrap_err(), ServeError::QueueFull { max_queue: 2 });
    assert_eq!(house.handle.status().queued, 2);
    drop(gone);
    gate.open();
    gate.batch();
    let late = house.submit(ask("d", 1));
    assert_eq!(house.handle.submit(ask("e", 1)).unwrap_err(), ServeError::QueueFull { max_queue: 2 });
    drop(gate);
    for (events, prompt, n) in [(running, "a", 4), (waiting, "b", 1), (late, "d", 1)] {
        assert_eq!(collect(events).text, expected(prompt, n));
    }
    house.assert_empty();
    assert_eq!(house.handle.totals().started, 4);
}

/// llama.cpp#13262, ik#1929: requests of clients that have left ran all the same, and cancelling a waiting request
/// cancelled the running one.
#[test]
fn ik_1929_cancelling_a_waiting_request_touches_no_other() {
    let (house, gate) = House::gated(1, 64, 8);
    let running = house.submit(ask("aa", 3));
    gate.batch();
    let waiting = house.submit(ask("bb", 3));
    let last = house.submit(ask("cc", 1));
    drop(waiting);
    gate.open();
    drop(gate);
    assert_eq!(collect(running).text, expected("aa", 3));
    assert_eq!(collect(last).text, expected("cc", 1));
    assert_eq!(house.handle.totals().finished(FinishReason::Cancelled), 1);
    // Three steps for the first, one for the last, none for the one in between.
    assert_eq!(house.probe.steps(), 4);
    house.assert_empty();
}

/// llama.cpp#24496: client gone, slot kept.
#[test]
fn llama_24496_a_lane_is_free_one_step_after_its_client_left() {
    let (house, gate) = House::gated(3, 256, 8);
    let stays = house.submit(ask("aa", 20));
    gate.batch();
    let decoding = house.submit(ask("b", 20));
    let reading = house.submit(ask(&"c".repeat(50), 20));
    gate.open();
    assert_eq!(runs(&gate.step()), [(0, 2, 1, 1), (1, 0, 1, 1), (2, 0, 6, 0)]);
    assert_eq!(runs(&gate.batch()), [(0, 3, 1, 1), (1, 1, 1, 1), (2, 6, 6, 0)]);
    drop(decoding);
    drop(reading);
    let next = house.submit(ask("dddd", 1));
    gate.open();
    // Both lanes are free, and the sequence of one of them begins anew.
    assert_eq!(runs(&gate.batch()), [(0, 4, 1, 1), (1, 0, 4, 1)]);
    assert_eq!(house.probe.kv_rows(), 4);
    drop(gate);
    assert_eq!(collect(next).text, expected("dddd", 1));
    assert_eq!(collect(stays).text, expected("aa", 20));
    assert_eq!(house.handle.totals().finished(FinishReason::Cancelled), 2);
    house.assert_empty();
}

#[test]
fn a_storm_of_cancellations_leaves_nothing_behind() {
    let house = House::plain(8, 1 << 20, 32);
    let mut stays = Vec::new();
    for i in 0..200usize {
        let prompt = "storm ".repeat(1 + i % 9);
        let mut events = house.submit(ask(&prompt, 100_000));
        // Some leave at once, some when they have got a lane, some after a few tokens.
        for _ in 0..i % 5 {
            events.blocking_recv();
        }
        drop(events);
        if i % 50 == 0 {
            stays.push((house.submit(ask(&prompt, 40)), prompt));
        }
    }
    for (events, prompt) in stays {
        assert_eq!(collect(events).text, expected(&prompt, 40));
    }
    assert_eq!(house.answer(ask("calm", 5)).text, expected("calm", 5));
    house.assert_empty();
    let totals = house.handle.totals();
    assert_eq!((totals.started, totals.finished(FinishReason::Length)), (205, 5));
    assert_eq!(totals.finished(FinishReason::Cancelled), 200);
}

/// lattice#744: a client that does not read must not hold up the others.
#[test]
fn lattice_744_a_client_that_does_not_read_blocks_nobody() {
    let house = House::plain(2, 4096, 32);
    let lazy = house.submit(ask("lazy", 500));
    assert_eq!(house.answer(ask("eager", 600)).text, expected("eager", 600));
    assert_eq!(collect(lazy).text, expected("lazy", 500));
}
