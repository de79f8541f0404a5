//! Draft heads that fail, and engines that fail with drafts in the batch.

use super::{
    speculation::{draft_calls, drafting, drafts, gated, spans, speculating},
    testing::Fault,
    *,
};

#[test]
fn a_draft_head_that_fails_fails_the_running_requests_and_nothing_else() {
    for fault in [Fault::Draft, Fault::ShortDraft] {
        let (house, gate) = gated(2, 256, 16, |_| true);
        let first = house.submit(ask("aa", 9));
        gate.batch();
        let waiting = [house.submit(ask("bb", 9)), house.submit(ask("cc", 9))];
        gate.open();
        gate.batch();
        house.probe.inject(fault);
        drop(gate);
        let [second, third] = waiting;
        for failed in [collect(first), collect(second)] {
            assert_eq!(failed.error.unwrap().class(), ErrorClass::Engine);
        }
        assert_eq!(collect(third).text, expected("cc", 9));
        assert_eq!(house.handle.status().phase, Phase::Ready);
        house.assert_empty();
    }
}

#[test]
fn a_draft_head_without_a_guess_ends_drafting_for_the_request() {
    let house = drafting(1, 256, 16, |_| true);
    house.probe.inject(Fault::DraftNan);
    let answer = house.answer(ask("aa", 9));
    assert_eq!(answer.text, expected("aa", 9));
    assert_eq!(drafts(&answer), Drafts { drafts: 0, accepted: 0, forwards: 8 });
    assert_eq!(draft_calls(&house).len(), 1);
    // The next one starts afresh.
    assert_eq!(drafts(&house.answer(ask("aa", 9))).accepted, 4);
}

#[test]
fn a_row_that_cannot_be_dropped_fails_its_request() {
    let house = drafting(2, 256, 16, |_| false);
    house.probe.inject(Fault::Truncate);
    let (first, second) = (collect(house.submit(ask("aa", 9))), house.answer(ask("bb", 9)));
    let error = first.error.unwrap();
    assert!(error.class() == ErrorClass::Engine && error.to_string().contains("rejected draft"), "{error}");
    assert_eq!(second.text, expected("bb", 9));
    assert_eq!(house.handle.status().phase, Phase::Ready);
    house.assert_empty();
}

#[test]
fn a_full_cache_leaves_the_drafts_of_the_others_alone() {
    let (house, gate) = gated(2, 256, 16, |i| i % 3 != 1);
    let first = house.submit(ask("aa", 15));
    gate.batch();
    let second = house.submit(ask("bb", 15));
    gate.open();
    gate.step();
    gate.batch();
    house.probe.inject(Fault::KvFull);
    drop(gate);
    assert_eq!(collect(second).error.unwrap().class(), ErrorClass::Engine);
    assert_eq!(collect(first).text, expected("aa", 15));
    house.assert_empty();
}

#[test]
fn a_strategy_needs_an_engine_that_drafts() {
    let text = FakeText::new();
    let (handle, starter) = ServeHandle::loading(roomy());
    let engine = FakeEngine::new(&text, 1, 64, 8);
    let error = starter.start(Box::new(engine), Arc::new(text), speculating()).unwrap_err();
    assert!(error.to_string().contains("`mtp` needs a draft head"), "{error}");
    assert_eq!(handle.status().phase, Phase::Failed);
    // An engine that could draft need not.
    let text = FakeText::new();
    let house = House::open(FakeEngine::new(&text, 1, 64, 8).drafting(|_| true), text, roomy());
    assert_eq!(house.answer(ask("aa", 9)).timings().drafts, None);
    assert!(draft_calls(&house).is_empty() && spans(&house).iter().all(|span| !span.drafts));
}
