//! Requests that take longer than they may.

use std::time::{Duration, Instant};

use super::*;

fn house(timeout: Duration) -> (House, Gate) {
    let text = FakeText::new();
    let (engine, gate) = FakeEngine::new(&text, 1, 256, 8).gated();
    (House::open(engine, text, ServeOptions { request_timeout: Some(timeout), ..roomy() }), gate)
}

#[test]
fn a_request_whose_time_is_over_before_it_has_a_lane_computes_nothing() {
    let (house, _gate) = house(Duration::ZERO);
    let answer = house.answer(ask("abc", 3));
    assert_eq!((answer.started, answer.error), (None, Some(ServeError::Deadline)));
    assert_eq!(house.probe.steps(), 0);
    house.assert_empty();
}

#[test]
fn running_and_waiting_requests_end_with_the_step_in_which_their_time_is_over() {
    let timeout = Duration::from_secs(1);
    let (house, gate) = house(timeout);
    let running = house.submit(ask("abc", 100));
    gate.step();
    gate.batch();
    let waiting = house.submit(ask("de", 1));
    let submitted = Instant::now();
    while submitted.elapsed() < timeout {
        std::thread::yield_now();
    }
    gate.open();
    let answer = collect(running);
    assert_eq!((answer.text.len(), answer.error), (2, Some(ServeError::Deadline)), "both steps still counted");
    let answer = collect(waiting);
    assert_eq!((answer.started, answer.error), (None, Some(ServeError::Deadline)));
    house.assert_empty();
    assert_eq!(house.handle.totals().finished(FinishReason::Error), 2);
}
