use serde_json::{Value, json};

use super::*;
use crate::policy::Capability;

fn here() -> Origin {
    Origin::unhashed(&Capability::default(), 2)
}

fn entry() -> Value {
    json!({
        "profile": "glm-dsa-v1", "switch": "selected_row_flash",
        "shape": {"n_tokens": 1, "n_kv": 32768, "top_k": 2048},
        "parity_error": 1e-5, "tolerance": 1e-4, "speed_ratio": 1.3,
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut entry = entry();
    entry[field] = value;
    entry
}

/// A sealed file as JSON.
fn sealed(entries: &[Value], origin: Origin) -> Value {
    let entries = entries.iter().map(|entry| serde_json::from_value(entry.clone()).unwrap()).collect();
    serde_json::from_str(&Evidence::seal(entries, origin).unwrap()).unwrap()
}

fn verdict(file: &Value) -> Result<(), Reason> {
    let evidence = Evidence::read(&file.to_string()).unwrap();
    evidence.opens(Profile::GlmDsaV1, Switch::SelectedRowFlash, &here())
}

#[test]
fn a_switch_opens_only_where_it_was_measured_to_win() {
    let cases: &[(&[Value], Result<(), Reason>)] = &[
        (&[], Err(Reason::EvidenceMissing)),
        (&[entry()], Ok(())),
        (&[with("switch", json!("moe_weighted_down"))], Err(Reason::EvidenceMissing)),
        (&[with("profile", json!("none"))], Err(Reason::EvidenceMissing)),
        (&[with("parity_error", json!(1e-4))], Ok(())),
        (&[with("parity_error", json!(1.1e-4))], Err(Reason::ParityFailed)),
        (&[with("speed_ratio", json!(1.0))], Err(Reason::EvidenceNoWin)),
        (&[entry(), with("speed_ratio", json!(0.9))], Err(Reason::EvidenceNoWin)),
        (&[with("speed_ratio", json!(0.9)), with("parity_error", json!(1.0))], Err(Reason::ParityFailed)),
    ];
    for (entries, wanted) in cases {
        assert_eq!(verdict(&sealed(entries, here())), *wanted, "{entries:?}");
    }
}

#[test]
fn evidence_of_another_build_or_machine_opens_nothing() {
    let elsewhere = |change: fn(&mut Origin)| {
        let mut origin = here();
        change(&mut origin);
        verdict(&sealed(&[with("speed_ratio", json!(0.5))], origin))
    };
    // Each of them hides that it does not even win.
    assert_eq!(elsewhere(|_| {}), Err(Reason::EvidenceNoWin));
    assert_eq!(elsewhere(|origin| origin.threads = 64), Err(Reason::EvidenceNoWin));
    for change in [
        (|origin| origin.build.push('x')) as fn(&mut Origin),
        |origin| origin.binary_sha256 = "ab".repeat(32),
        |origin| origin.llama.push('x'),
    ] {
        assert_eq!(elsewhere(change), Err(Reason::EvidenceForeignBuild));
    }
    for change in [(|origin| origin.device.push('x')) as fn(&mut Origin), |origin| origin.isa = "avx512".into()] {
        assert_eq!(elsewhere(change), Err(Reason::EvidenceForeignCpu));
    }
    let both = |origin: &mut Origin| {
        origin.isa.push('x');
        origin.build.push('x');
    };
    assert_eq!(elsewhere(both), Err(Reason::EvidenceForeignBuild));
    let backend = |origin: &mut Origin| origin.backend = crate::policy::Backend::Cuda;
    assert_eq!(elsewhere(backend), Err(Reason::EvidenceMissing));
}

#[test]
fn an_edit_anywhere_breaks_the_seal_and_a_new_layout_does_not() {
    let file = sealed(&[entry(), with("profile", json!("none"))], here());
    assert_eq!(verdict(&file), Ok(()));
    let edits = [
        ("/origin/build", json!("0.0.0")),
        ("/origin/binary_sha256", json!("00")),
        ("/origin/llama", json!("l")),
        ("/origin/backend", json!("cuda")),
        ("/origin/device", json!("another")),
        ("/origin/isa", json!("avx9")),
        ("/origin/threads", json!(3)),
        ("/entries/0/profile", json!("none")),
        ("/entries/0/switch", json!("moe_weighted_down")),
        ("/entries/0/shape/n_tokens", json!(2)),
        ("/entries/0/shape/n_kv", json!(2)),
        ("/entries/0/shape/top_k", json!(2)),
        ("/entries/0/parity_error", json!(0.0)),
        ("/entries/0/tolerance", json!(1e-4_f64.next_up())),
        ("/entries/0/speed_ratio", json!(1.3_f64.next_down())),
        ("/entries", json!([entry()])),
        ("/seal", json!("sha256:00")),
    ];
    for (pointer, value) in edits {
        let mut edited = file.clone();
        *edited.pointer_mut(pointer).unwrap() = value;
        assert_eq!(verdict(&edited), Err(Reason::EvidenceEdited), "{pointer}");
    }
    // Members in another order, another way to write the numbers, and no spaces.
    let turned = json!({
        "seal": file["seal"], "entries": file["entries"], "origin": file["origin"], "version": file["version"],
    });
    let text = turned.to_string().replace("0.0001", "1e-04").replace("1.3,", "1.30,").replace(":1.3}", ":13e-1}");
    assert_ne!(text, turned.to_string());
    let evidence = Evidence::read(&text).unwrap();
    assert!(evidence.is_intact());
    assert_eq!((evidence.entries().len(), evidence.origin()), (2, &here()));
}

#[test]
fn bad_files_are_refused_by_name() {
    let refused = |text: &str| Evidence::read(text).unwrap_err().to_string();
    let good = sealed(&[entry()], here());
    for (pointer, value, said) in [
        ("/entries/0/switch", json!("warp"), "`entries[0].switch`: must be one of"),
        ("/origin/backend", json!("tpu"), "`origin.backend`: must be one of cpu, cuda, metal, vulkan, got `tpu`"),
        ("/entries/0/profile", json!("glm-dsa-v9"), "`entries[0].profile`: must be one of"),
        ("/entries/0/tolerance", json!(0.1), "`entries[0].tolerance` must be between 0 and 0.005, got 0.1"),
        ("/entries/0/parity_error", json!(-1.0), "`entries[0].parity_error` must be"),
        ("/entries/0/speed_ratio", json!(0.0), "`entries[0].speed_ratio` must be"),
        ("/entries/0/speed_ratio", json!("fast"), "`entries[0].speed_ratio`: invalid type"),
        ("/entries/0/shape", json!({"n_tokens": 1}), "`entries[0].shape`: missing field `n_kv`"),
        ("/origin/threads", json!(-2), "`origin.threads`: invalid value"),
        ("/version", json!(1), "evidence has `version` 1, expected 2"),
        ("/version", json!("2"), "`version`: invalid type"),
        ("/seal", json!(null), "`seal`: invalid type"),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(refused(&bad.to_string()).contains(said), "{}", refused(&bad.to_string()));
    }
    let mut more = good.clone();
    more["entries"][0]["sped_ratio"] = json!(2);
    assert!(refused(&more.to_string()).contains("unknown field `sped_ratio`"), "{}", refused(&more.to_string()));
    for text in ["[]", "", "{", "null", r#"{"version":2}"#, &format!("{good} x"), "\0"] {
        assert!(refused(text).starts_with("evidence is not valid"), "{text}: {}", refused(text));
    }
    let impossible = Measurement { speed_ratio: f64::NAN, ..serde_json::from_value(entry()).unwrap() };
    assert!(Evidence::seal(vec![impossible], here()).unwrap_err().to_string().contains("speed_ratio"));
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("evidence.json");
    let said = || Evidence::open(&path).unwrap_err().to_string();
    assert!(said().contains("cannot read the evidence in `") && said().contains("evidence.json"), "{}", said());
    std::fs::write(&path, r#"{"version": 3}"#).unwrap();
    assert!(said().ends_with("evidence.json`: evidence has `version` 3, expected 2"), "{}", said());
    std::fs::write(&path, vec![b' '; MAX_BYTES as usize + 1]).unwrap();
    assert!(said().contains("longer than"), "{}", said());
    std::fs::write(&path, Evidence::seal(Vec::new(), here()).unwrap()).unwrap();
    assert!(Evidence::open(&path).unwrap().is_intact());
}

#[test]
fn this_process_knows_its_own_executable() {
    let here = Origin::here(&Capability::default(), 3).unwrap();
    assert_eq!((here.binary_sha256.len(), here.threads), (64, 3));
    let unhashed = Origin::unhashed(&Capability::default(), 3);
    let differences: Vec<&str> = here.differs(&unhashed).map(|difference| difference.field).collect();
    assert_eq!(differences, ["binary_sha256"]);
}
