//! `skippy-stage bench phase-e`: what it prints and writes, and that it fails when results or rows are not what they must be.

use serde_json::Value;
use skippy_stage::policy::{Evidence, evidence::Measurement};
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// Exit code, stdout and stderr of a short run on 2 threads, with no settings from outside.
fn phase_e(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skippy-stage"));
    let foreign = |name: &str| name.starts_with("SKIPPY_") || name.starts_with("GLM52_");
    for (name, _) in std::env::vars().filter(|(name, _)| foreign(name)) {
        command.env_remove(name);
    }
    command.args(["bench", "phase-e", "--quick", "--rounds", "1", "--threads", "2"]);
    let output = command.args(args).envs(env.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn every_boundary_is_measured_compared_and_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let [json, svg, evidence] = ["rows.json", "plot.svg", "evidence.json"].map(|name| dir.path().join(name));
    let args = ["--only", "boundaries", "--json", arg(&json), "--svg", arg(&svg), "--evidence", arg(&evidence)];
    let (code, stdout, stderr) = phase_e(&args, &[]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("bench phase-e --quick") && stdout.contains("| boundaries | 513 "), "{stdout}");

    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let rows = report["attention"].as_array().unwrap();
    let shape = |row: &Value| (row["n_kv"].as_u64().unwrap(), row["top_k"].as_u64().unwrap());
    let shapes: BTreeSet<_> = rows.iter().map(shape).collect();
    let expected = [128, 256, 257, 513].into_iter().flat_map(|rows| [(rows, rows), (rows + 1, rows)]);
    assert_eq!(shapes, expected.collect());
    for row in rows {
        assert!(row["value_error"].as_f64().unwrap() <= row["value_tolerance"].as_f64().unwrap(), "{row}");
        assert!(row["attend_ms"]["median"].as_f64().unwrap() > 0.0 && row["attend_ms"]["runs"] == 4, "{row}");
        let (n_kv, top_k) = shape(row);
        assert_eq!(
            (row["sideband_bytes"].as_u64(), row["dense_mask_bytes"].as_u64()),
            (Some(top_k * 4), Some(n_kv * 4))
        );
        // Where top-k covers what is visible, production attends to everything and selects nothing.
        let bypass = n_kv == top_k && row["path"] == "dense";
        assert_eq!(row["select_ms"].is_null(), bypass, "{row}");
    }
    let origin = &report["origin"];
    assert!(origin["binary_sha256"].as_str().unwrap().len() == 64 && origin["threads"] == 2, "{origin}");

    assert!(report["fma_peak_gmacs"].as_f64().unwrap() > 0.1);

    let evidence = Evidence::open(&evidence).unwrap();
    assert!(evidence.is_intact());
    assert_eq!(serde_json::to_value(evidence.origin()).unwrap(), *origin);
    let entries = evidence.entries();
    assert_eq!(entries.iter().map(|entry| entry.shape.n_kv).collect::<Vec<_>>(), [129, 257, 258, 514]);
    let same = |entry: &Measurement| entry.parity_error <= entry.tolerance && entry.speed_ratio > 0.0;
    assert!(entries.iter().all(|entry| same(entry) && entry.shape.n_tokens == 1), "{entries:?}");

    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("direct-sparse") && svg.contains("upstream"), "{svg}");
}

#[test]
fn a_result_that_differs_ends_the_command_before_any_time_is_printed() {
    for (spoil, said) in [("values", "values differ by"), ("selection", "not visible")] {
        let (code, stdout, stderr) = phase_e(&["--only", "boundaries", "--spoil", spoil], &[]);
        assert_eq!(code, Some(1), "{stdout}");
        let error = stderr.lines().last().unwrap();
        assert!(error.starts_with("error: boundaries: 128 rows") && error.contains(said), "{error}");
        assert!(!stdout.contains('|'), "{stdout}");
    }
}

#[test]
fn a_demanded_row_that_is_missing_fails_the_command() {
    let production = &[("GLM52_PHASE_E_REQUIRE_GATES", "1")][..];
    let sweep = &[("GLM52_PHASE_E_KERNEL_SWEEP", "1")][..];
    for (args, env, said) in [
        (&["--only", "decode"][..], production, "n_embd 6144, down q3_K; "),
        (&["--only", "decode"], sweep, "sweep with 1 threads, 1 tokens; "),
        // No room for sixteen experts: the row is left out, and the gate says so.
        (&["--only", "moe", "--memory", "100"], production, "n_embd 6144, down q2_K; "),
    ] {
        let (code, _, stderr) = phase_e(args, env);
        let error = stderr.lines().last().unwrap();
        assert!(code == Some(1) && error.starts_with("error: demanded rows are missing: "), "{error}");
        assert!(error.contains(said), "{error}");
    }
    let (code, stdout, stderr) = phase_e(&["--only", "moe", "--memory", "100"], &[]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("more than 100 MiB: moe: down q3_K"), "{stdout}");
    let off = &[("GLM52_PHASE_E_REQUIRE_GATES", "0"), ("GLM52_PHASE_E_KERNEL_SWEEP", "0")];
    assert_eq!(phase_e(&["--only", "decode"], off).0, Some(0));
}
