//! Metrics: what is counted, and that clients cannot make series.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::*;

/// A test whose metrics go to a recorder of its own: all handlers run on this thread.
fn measured<F: Future<Output = ()>>(test: impl FnOnce(App) -> F) {
    let recorder = telemetry::local().unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut app = App::new();
    app.metrics = recorder.handle();
    app.router = router(app.serve.clone(), recorder.handle(), HttpOptions::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(app));
}

fn series(scrape: &str) -> Vec<&str> {
    let lines = scrape.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0).collect()
}

fn value(scrape: &str, series: &str) -> f64 {
    let line = scrape.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    line.map_or(0.0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

#[tokio::test]
async fn the_scrape_is_classic_text() {
    let app = App::new();
    let answer = app.get("/metrics").await;
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(std::str::from_utf8(&answer.body).unwrap().contains("# TYPE skippy_http_requests_total counter"));
}

/// llm-d-router#1625, litellm#35666, otari#264, linkerd2#1378: 1000 random paths, methods and models add no series.
#[test]
fn llm_d_router_1625_random_paths_and_models_add_no_series() {
    measured(|app| async move {
        let path = "/[a-z]{1,8}(/[A-Za-z0-9%._-]{0,9}){0,3}";
        let method = "(GET|POST|PUT|DELETE|PATCH|HEAD|OPTIONS|TRACE|[A-Z]{1,8})";
        let mut runner = TestRunner::deterministic();
        let mut storm = async || {
            for _ in 0..350 {
                let (path, method, model) = (path, method, "[a-z/]{1,12}").new_tree(&mut runner).unwrap().current();
                let any = Request::builder().method(method.as_str()).uri(&path).body(Body::empty()).unwrap();
                app.send(any).await;
                app.get(&format!("/v1/models/{model}")).await;
                app.complete(json!({"model": model})).await;
                app.complete(json!({model: 1})).await;
            }
        };
        // Statuses that nobody has had yet appear when they happen; each of the closed set of labels at most once.
        storm().await;
        let before = app.metrics.render();
        storm().await;
        let after = app.metrics.render();
        let (mut before, mut after) = (series(&before), series(&after));
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after);
    });
}

#[test]
fn requests_are_counted_to_the_end_of_the_body() {
    measured(|app| async move {
        let count = |code: &str| {
            let name = "skippy_http_requests_total";
            let series = format!("{name}{{method=\"POST\",route=\"/v1/completions\",code=\"{code}\"}}");
            value(&app.metrics.render(), &series)
        };
        let in_flight = || value(&app.metrics.render(), "skippy_http_requests_in_flight");
        app.complete(json!({})).await;
        app.complete(json!({"stream": true})).await;
        assert_eq!((count("200"), in_flight()), (2.0, 0.0));
        app.complete(json!({"n": 0})).await;
        assert_eq!(count("400"), 1.0);

        let body = request(json!({"stream": true})).to_string();
        let response = bounded(app.router.clone().oneshot(post("/v1/completions", body))).await.unwrap();
        assert_eq!((count("200"), in_flight()), (2.0, 1.0), "the head alone does not count");
        drop(response);
        assert_eq!((count("200"), count("499"), in_flight()), (2.0, 1.0, 0.0));
        let durations = "skippy_http_request_duration_seconds_count{method=\"POST\",route=\"/v1/completions\"}";
        assert_eq!(value(&app.metrics.render(), durations), 4.0);
        assert_eq!(value(&app.metrics.render(), "skippy_request_errors_total{class=\"invalid_request\"}"), 1.0);
    });
}

/// The watchdog can be watched: alerts need no probe of their own.
#[test]
fn readiness_silence_and_memory_are_in_the_scrape() {
    measured(|app| async move {
        let scrape = async || {
            assert_eq!(app.get("/metrics").await.status, StatusCode::OK);
            app.metrics.render()
        };
        let ready = scrape().await;
        assert_eq!(value(&ready, "skippy_ready"), 1.0);
        let megabyte = f64::from(1 << 20);
        assert_eq!(value(&ready, "process_resident_memory_bytes") > megabyte, cfg!(target_os = "linux"));
        assert!(value(&ready, "skippy_engine_beat_age_seconds") < 20.0);
        app.serve.drain(Duration::ZERO);
        assert_eq!(value(&scrape().await, "skippy_ready"), 0.0);
    });
}

/// Probes and scrapes come every few seconds and would drown the rest.
#[test]
fn probes_and_scrapes_are_not_counted() {
    measured(|app| async move {
        let total = || {
            let scrape = app.metrics.render();
            let counted = scrape.lines().filter(|line| line.starts_with("skippy_http_requests_total"));
            counted.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum::<f64>()
        };
        for path in ["/livez", "/readyz", "/health", "/metrics"] {
            assert_eq!(app.get(path).await.status, StatusCode::OK, "{path}");
        }
        assert_eq!(total(), 0.0);
        let head = Request::head("/v1/models").body(Body::empty()).unwrap();
        app.send(head).await;
        assert_eq!(total(), 1.0);
        assert_eq!(
            value(
                &app.metrics.render(),
                "skippy_http_requests_total{method=\"HEAD\",route=\"/v1/models\",code=\"200\"}"
            ),
            1.0
        );
    });
}
