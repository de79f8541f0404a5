//! Several steps on their way at once, and stages that are lost.

use std::time::Duration;

use super::{
    speculation::{plainly, seen, speculating},
    testing::{FakeChain, Line},
    *,
};

const LANES: u32 = 4;

/// A server over `depth` stages on other machines, with a draft head that is right every other time.
fn chain(depth: usize, options: ServeOptions) -> (House, Line) {
    let text = FakeText::new();
    let engine = FakeEngine::new(&text, LANES, 4096, 32).drafting(|i| i % 2 == 0);
    let probe = engine.probe();
    let (chain, line) = FakeChain::new(engine, &text, depth);
    let (handle, starter) = ServeHandle::loading(options);
    let thread = starter.start_chain(Box::new(chain), Arc::new(text), speculating()).unwrap();
    (House { handle, thread, probe }, line)
}

fn resuming(seconds: u64) -> ServeOptions {
    ServeOptions { resume_timeout: Some(Duration::from_secs(seconds)), ..roomy() }
}

/// Requests of every kind: greedy and drawn, long prompts, scored ones, stops, without drafts.
fn requests() -> Vec<GenerateRequest> {
    let drawn = |seed| SamplingParams { temperature: 9.0, seed: Some(seed), ..SamplingParams::default() };
    vec![
        ask("first", 24),
        GenerateRequest { sampling: drawn(7), logprobs: Some(2), ..ask("second", 24) },
        ask(&"long ".repeat(20), 12),
        GenerateRequest { prompt_logprobs: true, logprobs: Some(1), ..ask(&"scored ".repeat(8), 6) },
        GenerateRequest { stop: vec!["e".into(), "a".into()], ..ask("stops", 60) },
        plainly(&GenerateRequest { sampling: drawn(9), ..ask("plain", 20) }),
    ]
}

/// The answers to all of them at once. While a stage is lost the server takes no requests: then they are handed in again.
fn answers(house: &House) -> Vec<Answer> {
    let events: Vec<_> = requests().into_iter().map(|request| hand_in(house, request)).collect();
    events.into_iter().map(collect).collect()
}

fn hand_in(house: &House, request: GenerateRequest) -> UnboundedReceiver<Event> {
    loop {
        match house.handle.submit(request.clone()) {
            Ok(events) => return events,
            Err(error) => assert_eq!(error.class(), ErrorClass::StageUnavailable),
        }
        std::thread::yield_now();
    }
}

/// The classes of faults that all of them meet, at once or later.
fn faults(house: &House) -> Vec<ErrorClass> {
    let class = |events| collect(events).error.unwrap().class();
    let submitted: Vec<_> = requests().into_iter().map(|request| house.handle.submit(request)).collect();
    submitted.into_iter().map(|events| events.map_or_else(|error| error.class(), class)).collect()
}

#[test]
fn answers_do_not_depend_on_how_many_steps_are_on_their_way() {
    let (alone, line) = chain(1, roomy());
    let expected: Vec<Answer> = requests().into_iter().map(|request| alone.answer(request)).collect();
    assert_eq!(line.most_in_flight(), 1);
    for depth in [2, 3, 8] {
        let (house, line) = chain(depth, roomy());
        for (answer, expected) in answers(&house).iter().zip(&expected) {
            assert_eq!(seen(answer), seen(expected), "{depth} stages");
        }
        let most = line.most_in_flight();
        assert!(most > 1 && most <= depth as u64 + 1, "{most} steps of {depth} stages");
        house.assert_empty();
    }
}

/// Wherever the chain breaks, the answers are those of a chain that holds.
#[test]
fn requests_go_on_behind_a_fault_with_the_same_tokens() {
    let (alone, _) = chain(1, roomy());
    let expected: Vec<Answer> = requests().into_iter().map(|request| alone.answer(request)).collect();
    for ticket in (1..60).step_by(3) {
        let (house, line) = chain(3, resuming(60));
        line.lose(ticket, 2);
        for (answer, expected) in answers(&house).iter().zip(&expected) {
            // What was read again is told as computed, not as taken over.
            let (text, tokens, prompt, reason, usage) = seen(answer);
            let (e_text, e_tokens, e_prompt, e_reason, e_usage) = seen(expected);
            assert_eq!((text, tokens, prompt, reason), (e_text, e_tokens, e_prompt, e_reason), "lost at step {ticket}");
            assert_eq!(usage.completion_tokens, e_usage.completion_tokens);
        }
        assert_eq!(house.handle.status().unavailable, None);
        house.assert_empty();
    }
}

#[test]
fn a_lost_stage_fails_its_requests_and_no_others() {
    let (house, line) = chain(2, roomy());
    line.lose(5, u64::MAX);
    assert_eq!(faults(&house), [ErrorClass::StageUnavailable; 6]);
    let status = house.handle.status();
    assert_eq!((status.phase, status.unavailable.is_some()), (Phase::Ready, true));
    let refused = house.handle.submit(ask("meanwhile", 1)).unwrap_err();
    assert_eq!((refused.class(), refused.to_string().contains("stage 1: gone")), (ErrorClass::StageUnavailable, true));
    line.bring_back();
    assert_eq!(collect(hand_in(&house, ask("again", 9))).text, expected("again", 9));
    house.assert_empty();
}

#[test]
fn a_stage_that_stays_away_fails_what_waits_for_it() {
    let (house, line) = chain(2, ServeOptions { resume_timeout: Some(Duration::from_millis(30)), ..roomy() });
    line.lose(5, u64::MAX);
    assert_eq!(faults(&house), [ErrorClass::StageUnavailable; 6]);
    house.assert_empty();
    // A shutdown need not wait for it.
    house.handle.drain(Duration::from_secs(60));
    house.thread.join().unwrap();
    assert_eq!(house.handle.status().phase, Phase::Stopped);
}

/// A request whose rows break the chain each time.
#[test]
fn requests_do_not_wait_for_a_chain_that_breaks_again_and_again() {
    let (house, line) = chain(2, resuming(3600));
    line.lose_always(true);
    assert_eq!(faults(&house), [ErrorClass::StageUnavailable; 6]);
    line.lose_always(false);
    while house.handle.status().unavailable.is_some() {
        std::thread::yield_now();
    }
    assert_eq!(house.answer(ask("after", 9)).text, expected("after", 9));
    house.assert_empty();
}

#[test]
fn requests_that_wait_for_a_stage_can_be_cancelled_and_shut_down() {
    let (house, line) = chain(2, resuming(3600));
    line.lose(2, u64::MAX);
    let first = house.submit(ask("first", 60));
    while house.handle.status().unavailable.is_none() {
        std::thread::yield_now();
    }
    drop(first);
    while house.handle.totals().finished(FinishReason::Cancelled) == 0 {
        std::thread::yield_now();
    }
    line.bring_back();
    let second = hand_in(&house, ask("second", 4000));
    line.lose(0, u64::MAX);
    line.lose_always(true);
    while house.handle.status().unavailable.is_none() {
        std::thread::yield_now();
    }
    house.handle.drain(Duration::ZERO);
    assert_eq!(collect(second).error.unwrap().class(), ErrorClass::Draining);
    house.thread.join().unwrap();
}

#[test]
fn a_stage_that_shuts_down_lets_running_requests_finish() {
    let text = FakeText::new();
    let (engine, gate) = FakeEngine::new(&text, 1, 4096, 32).gated();
    let probe = engine.probe();
    let (chain, line) = FakeChain::new(engine, &text, 2);
    let (handle, starter) = ServeHandle::loading(roomy());
    let thread = starter.start_chain(Box::new(chain), Arc::new(text), card()).unwrap();
    let house = House { handle, thread, probe };
    let (runs, waits) = (house.submit(ask("runs", 9)), house.submit(ask("waits", 9)));
    gate.batch();
    line.drain("stage 1 is shutting down");
    drop(gate);
    assert_eq!(collect(runs).text, expected("runs", 9));
    assert_eq!(collect(waits).error.unwrap().class(), ErrorClass::StageUnavailable);
    while house.handle.status().unavailable.is_some() {
        std::thread::yield_now();
    }
    assert_eq!(house.answer(ask("after", 9)).text, expected("after", 9));
    house.assert_empty();
}
