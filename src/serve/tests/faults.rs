//! An engine that fails.

use super::*;
use crate::serve::testing::Fault;

fn is_engine_error(answer: &Answer) -> bool {
    answer.error.as_ref().is_some_and(|error| error.class() == ErrorClass::Engine)
}

#[test]
fn a_failed_step_fails_the_running_requests_and_nothing_else() {
    for fault in [Fault::Engine, Fault::ShortOutput] {
        let (house, gate) = House::gated(2, 256, 8);
        let first = house.submit(ask("aa", 9));
        gate.batch();
        let second = house.submit(ask("bb", 9));
        let waiting = house.submit(ask("cc", 9));
        gate.open();
        gate.batch();
        house.probe.inject(fault);
        drop(gate);
        assert!(is_engine_error(&collect(first)));
        assert!(is_engine_error(&collect(second)));
        assert_eq!(collect(waiting).text, expected("cc", 9));
        assert_eq!(house.handle.status().phase, Phase::Ready);
        assert_eq!(house.handle.totals().finished(FinishReason::Error), 2);
        house.assert_empty();
    }
}

#[test]
fn three_failed_steps_in_a_row_fail_the_server() {
    let house = House::plain(1, 64, 8);
    for _ in 0..2 {
        house.probe.inject(Fault::Engine);
        assert!(is_engine_error(&house.answer(ask("a", 2))));
    }
    assert_eq!(house.answer(ask("a", 2)).text, expected("a", 2), "a good step forgives");
    for _ in 0..3 {
        house.probe.inject(Fault::Engine);
        assert!(is_engine_error(&house.answer(ask("a", 2))));
    }
    let status = house.handle.status();
    assert_eq!(status.phase, Phase::Failed);
    assert!(status.failure.unwrap().contains("injected fault"));
    assert_eq!(house.handle.submit(ask("a", 2)).unwrap_err().class(), ErrorClass::Engine);
    house.thread.join().unwrap();
    assert_eq!(house.handle.status().beat_age, None);
}

#[test]
fn a_panic_reaches_every_client_and_the_status() {
    let (house, gate) = House::gated(1, 64, 8);
    let running = house.submit(ask("aa", 9));
    gate.batch();
    let waiting = house.submit(ask("bb", 9));
    house.probe.inject(Fault::Panic);
    gate.open();
    assert!(is_engine_error(&collect(running)));
    assert_eq!(house.handle.status().phase, Phase::Failed);
    let error = collect(waiting).error.unwrap();
    assert!(error.to_string().contains("injected panic"), "{error}");
    let totals = house.handle.totals();
    assert_eq!((totals.started, totals.finished(FinishReason::Error)), (2, 2));
    house.thread.join().unwrap();
}

#[test]
fn a_nan_fails_the_request_that_it_belongs_to() {
    for sampling in [SamplingParams::greedy(), SamplingParams { seed: Some(1), ..SamplingParams::default() }] {
        let (house, gate) = House::gated(2, 256, 8);
        let first = house.submit(GenerateRequest { sampling, ..ask("aa", 9) });
        gate.batch();
        let second = house.submit(ask("bb", 9));
        gate.open();
        gate.batch();
        house.probe.inject(Fault::Nan);
        drop(gate);
        let answer = collect(first);
        assert!(is_engine_error(&answer) && answer.tokens.len() == 1, "{answer:?}");
        assert_eq!(collect(second).text, expected("bb", 9));
        house.assert_empty();
    }
}

#[test]
fn a_full_cache_costs_the_youngest_request_only() {
    let (house, gate) = House::gated(3, 256, 8);
    let first = house.submit(ask("aa", 9));
    gate.batch();
    let second = house.submit(ask("bb", 9));
    let third = house.submit(ask("cc", 9));
    gate.open();
    gate.batch();
    house.probe.inject(Fault::KvFull);
    drop(gate);
    assert!(is_engine_error(&collect(third)));
    assert_eq!(collect(first).text, expected("aa", 9));
    assert_eq!(collect(second).text, expected("bb", 9));
    house.assert_empty();
}
