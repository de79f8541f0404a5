//! Loading, draining, the end, and what metrics say of it.

use std::time::Duration;

use super::*;
use crate::{package::LayerRange, telemetry};

fn engine(text: &FakeText) -> Box<FakeEngine> {
    Box::new(FakeEngine::new(text, 2, 256, 8))
}

#[test]
fn loading_then_ready() {
    let (handle, starter) = ServeHandle::loading(ServeOptions::default());
    assert_eq!(handle.status().phase, Phase::Loading);
    assert_eq!(handle.status().beat_age, None);
    assert!(handle.model().is_none() && handle.text().is_none());
    assert_eq!(handle.submit(ask("a", 1)).unwrap_err(), ServeError::Loading);
    let text = FakeText::new();
    let thread = starter.start(engine(&text), Arc::new(text), card()).unwrap();
    assert_eq!(handle.status().phase, Phase::Ready);
    assert_eq!((handle.status().lanes, handle.status().kv_capacity), (2, 256));
    assert_eq!(handle.model().unwrap().n_ctx, 128);
    assert_eq!(collect(handle.submit(ask("a", 3)).unwrap()).text, expected("a", 3));
    assert!(handle.status().beat_age.is_some());
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn loading_that_fails() {
    let (handle, starter) = ServeHandle::loading(ServeOptions::default());
    starter.failed("`layers/3.gguf` is cut short");
    assert_eq!(handle.status().phase, Phase::Failed);
    assert!(handle.status().failure.unwrap().contains("cut short"));
    assert!(
        matches!(handle.submit(ask("a", 1)), Err(ServeError::LoadFailed(message)) if message.contains("cut short"))
    );

    let (handle, starter) = ServeHandle::loading(ServeOptions::default());
    drop(starter);
    assert_eq!(handle.status().phase, Phase::Failed);
}

#[test]
fn an_engine_without_input_or_output_is_refused() {
    let text = FakeText::new();
    for (range, missing) in [(0..3, "no output"), (1..4, "no input")] {
        let layers = LayerRange::new(range.start, range.end).unwrap();
        let engine = FakeEngine::new(&text, 1, 64, 8).with_layers(layers);
        let (handle, starter) = ServeHandle::loading(ServeOptions::default());
        let error = starter.start(Box::new(engine), Arc::new(text.clone()), card()).unwrap_err();
        assert!(error.to_string().contains(missing), "{error}");
        assert_eq!(handle.status().phase, Phase::Failed);
    }
    let other = FakeText::with_pieces([b"one more".as_slice()]);
    let error = spawn(engine(&text), Arc::new(other), card(), ServeOptions::default()).err().unwrap();
    assert!(error.to_string().contains("258") && error.to_string().contains("259"), "{error}");
}

/// vllm RFC#24885: running streams finish, waiting and new ones are told to go elsewhere.
#[test]
fn vllm_24885_draining_lets_running_requests_finish() {
    let (house, gate) = House::gated(1, 64, 8);
    let running = house.submit(ask("aa", 9));
    gate.batch();
    let waiting = house.submit(ask("bb", 9));
    house.handle.drain(Duration::from_secs(3600));
    assert_eq!(house.handle.status().phase, Phase::Draining);
    assert_eq!(house.handle.submit(ask("cc", 9)).unwrap_err(), ServeError::Draining);
    drop(gate);
    assert_eq!(collect(waiting).error, Some(ServeError::Draining));
    assert_eq!(collect(running).text, expected("aa", 9));
    house.thread.join().unwrap();
    assert_eq!(house.handle.status().phase, Phase::Stopped);
    assert_eq!(house.handle.submit(ask("cc", 9)).unwrap_err(), ServeError::Draining);
}

#[test]
fn draining_ends_running_requests_at_its_limit() {
    let (house, gate) = House::gated(1, 64, 8);
    let running = house.submit(ask("aa", 9));
    gate.batch();
    house.handle.drain(Duration::from_secs(3600));
    house.handle.drain(Duration::ZERO);
    gate.open();
    let answer = collect(running);
    assert_eq!((answer.started, answer.error), (Some(2), Some(ServeError::Draining)));
    house.thread.join().unwrap();
    assert_eq!(house.probe.steps(), 1);
    assert_eq!(house.handle.status().phase, Phase::Stopped);
}

#[tokio::test]
async fn an_idle_server_stops_at_once_when_drained() {
    let house = House::plain(2, 64, 8);
    house.handle.drain(Duration::from_secs(3600));
    assert_eq!(house.handle.stopped().await, Phase::Stopped);
}

#[tokio::test]
async fn a_shutdown_while_loading_wins() {
    let (handle, starter) = ServeHandle::loading(ServeOptions::default());
    handle.drain(Duration::from_secs(3600));
    assert_eq!(handle.stopped().await, Phase::Stopped);
    let text = FakeText::new();
    let error = starter.start(engine(&text), Arc::new(text), card()).err().unwrap();
    assert_eq!(error, ServeError::Draining);
    assert_eq!(handle.status().phase, Phase::Stopped);
}

#[test]
fn the_thread_ends_after_the_last_request_when_every_handle_is_gone() {
    let House { handle, thread, .. } = House::plain(1, 64, 8);
    let (first, second) = (handle.submit(ask("aa", 9)).unwrap(), handle.submit(ask("bb", 9)).unwrap());
    drop(handle);
    thread.join().unwrap();
    assert_eq!(collect(first).text, expected("aa", 9));
    assert_eq!(collect(second).text, expected("bb", 9));
}

/// vllm#31503, #55634: aborted requests were counted wrongly.
#[test]
fn vllm_31503_metrics_count_every_request_for_exactly_one_reason() {
    let recorder = telemetry::local().unwrap();
    metrics::with_local_recorder(&recorder, || {
        let (handle, starter) = ServeHandle::loading(ServeOptions::default());
        let text = FakeText::new();
        let engine = FakeEngine::new(&text, 2, 256, 8).replying(ids("answer"));
        let probe = engine.probe();
        let serve = prepare(&starter, engine, text, card());
        let submit = |max_tokens| handle.submit(ask("question", max_tokens)).unwrap();
        // One step in, the first two fail; then come a cancelled one, an end of generation, and a used-up budget.
        probe.inject(testing::Fault::Engine);
        let (failed, also_failed, gone, stop, length) = (submit(9), submit(9), submit(9), submit(9), submit(3));
        drop(gone);
        let totals = handle.totals();
        assert_eq!((totals.started, totals.finished_in_all()), (5, 0));
        // Nobody is left who could ask for more, so this returns.
        drop((handle, starter));
        serve();
        assert!(collect(failed).error.is_some() && collect(also_failed).error.is_some());
        assert_eq!(collect(stop).reason(), FinishReason::Stop);
        assert_eq!(collect(length).reason(), FinishReason::Length);
    });
    let scrape = recorder.handle().render();
    let has = |line: String| assert!(scrape.lines().any(|other| other == line), "{line} is missing from\n{scrape}");
    for (reason, n) in [("stop", 1), ("length", 1), ("cancelled", 1), ("error", 2)] {
        has(format!("skippy_requests_finished_total{{endpoint=\"completions\",finish_reason=\"{reason}\"}} {n}"));
    }
    has("skippy_generation_tokens_total 10".into());
    has("skippy_prompt_tokens_total{source=\"computed\"} 16".into());
    has("skippy_time_to_first_token_seconds_count 2".into());
    has("skippy_inter_token_latency_seconds_count 8".into());
    has("skippy_queue_duration_seconds_count 4".into());
    has("skippy_lanes_busy 0".into());
    has("skippy_lanes_capacity 2".into());
    has("skippy_kv_cells_used 0".into());
    has("skippy_kv_cells_capacity 256".into());
    has("skippy_requests_queued 0".into());
}
