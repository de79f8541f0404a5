//! Explanations, contracts and switches.

use super::*;
use crate::package::generation::Switch;
use evidence::{Measurement, Shape};

fn words(resolver: &Resolver, inputs: Inputs) -> String {
    resolver.explain(&inputs).words
}

#[test]
fn a_decision_is_told_in_a_sentence_with_its_numbers() {
    let cpu = resolver(&sample());
    let cuda = cpu.clone().on(Capability::of(Backend::Cuda));
    let forced = |path, inputs| Inputs { path: Some(path), ..inputs };
    let (decode, long) = (Inputs::new(Phase::Decode, 1, 100), Inputs::new(Phase::LongPrefill, 8, 100));
    for (got, wanted) in [
        (
            words(&cpu, decode),
            "the package asks for compact-flash; compact-flash is taken since the package recommends it",
        ),
        (
            words(&cpu, Inputs { n_kv: 10, ..decode }),
            "the package asks for compact-flash; compact-flash is not taken since top-k 64 covers all 10 visible KV rows: \
             dense is exact, and nothing has to be scored; dense is taken",
        ),
        (
            words(&cpu, Inputs::new(Phase::ShortPrefill, 128, 257)),
            "the package asks for dense; dense is not taken since its mask would take 131584 bytes, more than \
             dense_mask_max_bytes = 131072; sparse-chunked is taken",
        ),
        (
            words(&cuda, forced(Path::DirectSparse, decode)),
            "the package asks for compact-flash; direct-sparse is not taken since cuda does not have it; compact-flash is \
             taken",
        ),
        (
            words(&cpu, forced(Path::Fallback, long)),
            "the package asks for sparse-chunked; fallback is taken since the request forces it",
        ),
        (
            words(&resolver(&generation(json!({"decode": "warp"}), json!({}))), decode),
            "the package asks for something unknown; fallback is taken since `generation.policy.decode` \"warp\" is \
             not known to this version, so only the named fallback may serve it",
        ),
        (
            words(&with(&sample(), |config| config.roles = vec![Role::Shared]), Inputs { has_list: false, ..decode }),
            "refused: the stage starts on a shared layer, and the top-k lists of the layer before it are not there",
        ),
        (
            words(&cpu, Inputs::new(Phase::Verify, 2, 100)),
            "the package says `auto`; direct-sparse is taken since the package leaves the choice to the runtime, for \
             which it comes first here: on cpu the selected rows are attended to where they lie, and nothing is gathered",
        ),
        (
            words(&cuda, Inputs::new(Phase::Verify, 2, 100)),
            "the package says `auto`; compact-flash is taken since the package leaves the choice to the runtime, for \
             which it comes first here: cuda cannot attend to the selected rows where they lie, so they are gathered",
        ),
        (
            words(&Resolver::default(), decode),
            "the package says nothing; compact-flash is taken since the package says nothing about decode, and this is \
             the default for `glm-dsa`",
        ),
    ] {
        assert_eq!(got, wanted);
    }
}

#[test]
fn explanations_have_a_stable_shape() {
    let below = generation(json!({}), json!({"compact_flash_min_kv": 4096, "short_prefill_max_tokens": 512}));
    let overrides = Overrides { decode: Some(Path::DirectSparse), ..Overrides::default() };
    let resolver = with(&below, |config| {
        (config.capability, config.overrides) = (Capability::of(Backend::Cuda), overrides);
    });
    let explanation = resolver.explain(&Inputs::new(Phase::Decode, 1, 1000));
    insta::assert_json_snapshot!("explanation", explanation);
    insta::assert_snapshot!("explanation_text", explanation);
}

#[test]
fn the_contract_shows_what_is_declared_and_what_holds() {
    let odd = generation(
        json!({"verify": "warp", "long_prefill": null, "indexshare": "later", "metal": "on"}),
        json!({"compact_flash_min_kv": 7}),
    );
    let overrides = Overrides { short_prefill: Some(Path::SparseChunked), ..Overrides::default() };
    let resolver = with(&odd, |config| {
        config.overrides = overrides;
        config.roles = vec![Role::Full, Role::Shared];
    });
    insta::assert_json_snapshot!("contract", resolver.contract());
}

/// A measurement of `selected_row_flash` here.
fn exhibit(speed_ratio: f64) -> Exhibit {
    let here = Origin::unhashed(&Capability::default(), 1);
    let measurement = Measurement {
        profile: Profile::GlmDsaV1,
        switch: Switch::SelectedRowFlash,
        shape: Shape { n_tokens: 1, n_kv: 32768, top_k: 2048 },
        parity_error: 0.0,
        tolerance: 1e-4,
        speed_ratio,
    };
    let evidence = Evidence::read(&Evidence::seal(vec![measurement], here.clone()).unwrap()).unwrap();
    Exhibit { evidence, here }
}

#[test]
fn switches_stand_closed_with_a_reason() {
    let state = |generation: &Generation, evidence: Option<f64>| {
        let resolver = with(generation, |config| config.evidence = evidence.map(exhibit));
        let states = resolver.switches().iter().map(|state| (state.switch, (state.open, state.reason)));
        states.collect::<std::collections::BTreeMap<_, _>>()
    };
    let (none, wins) = (None, Some(1.5));
    let flash = Switch::SelectedRowFlash;
    assert_eq!(state(&sample(), none)[&flash], (false, Some(Reason::EvidenceMissing)));
    assert_eq!(state(&sample(), wins)[&flash], (true, None));
    // Not declared: there is nothing to open.
    assert_eq!(state(&sample(), wins)[&Switch::MoeWeightedDown], (false, None));
    let gate = generation(json!({"experimental": {"selected_row_flash": "on"}}), json!({}));
    assert_eq!(state(&gate, wins)[&flash], (false, Some(Reason::UnknownValue)));
    let profile = generation(json!({"profile": "glm-dsa-v2"}), json!({}));
    assert_eq!(state(&profile, wins)[&flash], (false, Some(Reason::UnknownProfile)));
    assert_eq!(state(&sample(), Some(0.5))[&flash], (false, Some(Reason::EvidenceNoWin)));
    let cuda = with(&sample(), |config| config.evidence = wins.map(exhibit)).on(Capability::of(Backend::Cuda));
    assert_eq!(cuda.switches()[0].reason, Some(Reason::EvidenceMissing), "evidence of another backend");
    assert!(cuda.on(Capability::of(Backend::Cpu)).switches()[0].open, "and back");
}

#[test]
fn the_documentation_names_every_word() {
    let text = include_str!("../../../docs/policy.md");
    let switches: Vec<&str> = Switch::NAMES.iter().map(|(name, _)| *name).collect();
    let words = [Phase::VALUES, Path::VALUES, Reason::VALUES, Threshold::VALUES, &switches];
    for word in words.into_iter().flatten() {
        assert!(text.contains(&format!("`{word}`")), "docs/policy.md does not name `{word}`");
    }
    for threshold in Threshold::ALL {
        let default = Resolver::default().limit(*threshold).value;
        let row = text.lines().find(|line| line.starts_with(&format!("| `{threshold}` |"))).unwrap();
        assert!(row.ends_with(&format!("| {default} |")), "{row}");
    }
}
