use std::{collections::BTreeSet, io::Write, process::Stdio};

use super::{
    catalogue::{CATALOGUE, Children, Kind},
    labels::*,
    metrics::*,
    *,
};
use crate::policy;

/// A scrape after everything that can move has moved once.
fn scrape_after_everything() -> String {
    let recorder = local().unwrap();
    ::metrics::with_local_recorder(&recorder, || {
        let second = Duration::from_secs(1);
        set_requests(3, 2);
        set_lanes(3, 8);
        set_kv_cells(100, 4096);
        set_prefix_cache(1 << 20, 64);
        prefix_looked_up(true);
        prefixes_evicted(2);
        engine_step(StepPhase::Mixed, 17, second);
        drafted(second);
        draft_verified(DraftPosition::First, true);
        speculating_forward(2);
        drafting_stopped(DraftingStopped::LowAcceptance);
        request_admitted(second);
        prompt_tokens(PromptSource::Computed, 21);
        prompt_tokens(PromptSource::Cached, 64);
        first_token(second, second);
        next_token(second);
        request_finished(Endpoint::Completions, Finish::Length, second, Some(second));
        request_error(ErrorKind::QueueFull);
        let inputs = policy::Inputs::new(policy::Phase::Decode, 1, 100);
        policy_decision(policy::Profile::None, &policy::Resolver::default().resolve(&inputs));
        policy::Resolver::default().switches().iter().for_each(experimental_switch);
        indexshare_sideband(Direction::In, 3072);
        std::mem::forget(LinkUp::new(Direction::In));
        link_frame(Direction::Out, 4096);
        link_rtt(second);
        stage_busy(second);
        link_fault(FaultCode::Busy);
        link_connect(LinkConnect::Timeout);
        kv_rows(KvKind::Indexer, 12);
        kv_rows(KvKind::Indexer, -5);
        load_finished(LoadPhase::Verify, second);
        set_health(true, Some(second));
        set_model_info(&ModelInfo {
            model: "org/a \"quoted\" \\ name\nin two lines",
            package_digest: "00ff",
            architecture: "llama",
            layer_start: 0,
            layer_end: 30,
            abi: "1.0.0",
        });
        let mut http = HttpRequest::start(Method::Post, Route::Completions);
        http.responded(400);
        http.body_ended();
    });
    recorder.handle().render()
}

fn value(scrape: &str, series: &str) -> f64 {
    let line = scrape.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no series {series}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_fresh_scrape_shows_zeros() {
    let scrape = local().unwrap().handle().render();
    for def in CATALOGUE {
        let shown = scrape.contains(&format!("# TYPE {} ", def.name));
        let later = [catalogue::MODEL_INFO, catalogue::POLICY_DECISIONS, catalogue::EXPERIMENTAL_SWITCH];
        assert_eq!(shown, !later.contains(&def.name), "{}", def.name);
    }
    for finish in Finish::VALUES {
        let series = format!("skippy_requests_finished_total{{endpoint=\"completions\",finish_reason=\"{finish}\"}}");
        assert_eq!(value(&scrape, &series), 0.0);
    }
    assert_eq!(value(&scrape, "skippy_time_to_first_token_seconds_count"), 0.0);
    assert!(value(&scrape, "process_start_time_seconds") > 1.7e9);
}

#[test]
fn every_record_function_moves_its_metric() {
    let scrape = scrape_after_everything();
    let before = local().unwrap().handle().render();
    for def in CATALOGUE {
        let of = |scrape: &str| -> BTreeSet<String> {
            scrape.lines().filter(|line| line.starts_with(def.name)).map(str::to_owned).collect()
        };
        let constant = [catalogue::BUILD_INFO, catalogue::PROCESS_START_TIME, catalogue::HTTP_REQUESTS_IN_FLIGHT];
        assert_eq!(of(&scrape) == of(&before), constant.contains(&def.name), "{}", def.name);
    }
    assert_eq!(value(&scrape, "skippy_generation_tokens_total"), 2.0);
    let decided = "skippy_policy_decisions_total{profile=\"none\",phase=\"decode\",recommended=\"none\",\
                   selected=\"compact-flash\",reason=\"built_in_default\"}";
    assert_eq!(value(&scrape, decided), 1.0);
    let closed = "skippy_experimental_switch_open{switch=\"selected_row_flash\",reason=\"not_declared\"}";
    assert_eq!(value(&scrape, closed), 0.0);
    assert_eq!(value(&scrape, "skippy_policy_dense_mask_avoided_bytes_total{phase=\"decode\"}"), 400.0);
    assert_eq!(value(&scrape, "skippy_indexshare_sideband_bytes_total{direction=\"in\"}"), 3072.0);
    assert_eq!(value(&scrape, "skippy_kv_rows{kind=\"indexer\"}"), 7.0);
    assert_eq!(value(&scrape, "skippy_batch_rows_bucket{le=\"16\"}"), 0.0);
    assert_eq!(value(&scrape, "skippy_batch_rows_bucket{le=\"32\"}"), 1.0);
}

#[test]
fn a_body_that_ends_early_counts_as_499() {
    let recorder = local().unwrap();
    ::metrics::with_local_recorder(&recorder, || {
        let mut http = HttpRequest::start(Method::Post, Route::Completions);
        http.responded(200);
    });
    let scrape = recorder.handle().render();
    let series =
        |code| format!("skippy_http_requests_total{{method=\"POST\",route=\"/v1/completions\",code=\"{code}\"}}");
    assert_eq!(value(&scrape, &series(499)), 1.0);
    assert_eq!(value(&scrape, &series(200)), 0.0);
    assert_eq!(value(&scrape, "skippy_http_requests_in_flight"), 0.0);
}

/// llama.cpp#12803, inference-perf#600, inference-perf PR#455: no colon, `_total` on counters only, base units.
#[test]
fn names_follow_the_prometheus_rules() {
    let mut seen = BTreeSet::new();
    for def in CATALOGUE {
        assert!(seen.insert(def.name), "{} twice", def.name);
        let usual = [catalogue::PROCESS_START_TIME, catalogue::PROCESS_RESIDENT_MEMORY];
        assert!(def.name.starts_with("skippy_") || usual.contains(&def.name), "{}", def.name);
        assert!(def.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", def.name);
        assert_eq!(def.name.ends_with("_total"), def.kind == Kind::Counter, "{}", def.name);
        assert_eq!(def.name.ends_with("_info"), def.children == Children::Info, "{}", def.name);
        assert_eq!(def.name.ends_with("_seconds"), def.unit == Some(::metrics::Unit::Seconds), "{}", def.name);
        assert!(def.help.ends_with('.') && def.help.len() < 160, "{}", def.name);
        if let Kind::Histogram { buckets } = def.kind {
            assert!(buckets.is_sorted() && !buckets.is_empty(), "{}", def.name);
        }
    }
}

#[test]
fn status_codes_are_a_closed_set() {
    let all: BTreeSet<&str> = (0..=999).map(status_code).collect();
    assert_eq!(all, STATUS_CODES.iter().copied().collect());
}

/// The lint that operators run; skipped where the Debian package `prometheus` is not installed.
#[test]
fn promtool_accepts_the_scrape() {
    for scrape in [local().unwrap().handle().render(), scrape_after_everything()] {
        let child = std::process::Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else { return eprintln!("promtool is not installed, not run") };
        child.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{scrape}");
    }
}

/// `docs/metrics.md` has one table row per metric, made by [`doc_row`]; run with `UPDATE_DOCS=1` to write them.
#[test]
fn the_documentation_lists_exactly_these_metrics() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once("<!-- metrics -->\n").expect("start mark");
    let (table, tail) = rest.split_once("<!-- /metrics -->").expect("end mark");
    let wanted: String = std::iter::once("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n".to_owned())
        .chain(CATALOGUE.iter().map(doc_row))
        .collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{head}<!-- metrics -->\n{wanted}<!-- /metrics -->{tail}");
        return std::fs::write(path, text).unwrap();
    }
    assert!(table == wanted, "docs/metrics.md differs from the catalogue; expected\n{wanted}");
}

fn doc_row(def: &catalogue::MetricDef) -> String {
    let kind = match def.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram { .. } => "histogram",
    };
    let labels: Vec<String> = def
        .labels
        .iter()
        .map(|label| match label.values {
            [] => format!("`{}`", label.name),
            values => format!("`{}`: {}", label.name, values.join(", ")),
        })
        .collect();
    format!("| `{}` | {kind} | {} | {} |\n", def.name, labels.join("; "), def.help)
}
