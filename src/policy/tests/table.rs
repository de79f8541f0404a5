//! The rules, row by row.

use super::*;
use Path::{CompactFlash, Dense, DirectSparse, Fallback, SparseChunked};
use Phase::{Decode, LongPrefill, ShortPrefill, Verify};

/// Phase, tokens, KV rows; path taken, path rejected, reason.
type Row = (Phase, u32, u32, Path, Option<Path>, Reason);

fn check(resolver: &Resolver, rows: &[Row]) {
    for (phase, n_tokens, n_kv, selected, rejected, reason) in rows {
        let got = resolver.resolve(&Inputs::new(*phase, *n_tokens, *n_kv));
        let wanted = (*selected, *rejected, *reason);
        assert_eq!((got.selected, got.rejected, got.reason), wanted, "{phase} {n_tokens} over {n_kv}");
    }
}

#[test]
fn the_policy_of_the_spec_at_and_around_every_edge() {
    // Thresholds: 32 KV rows for compact-flash (below top-k 64, so it never shows here), a mask of 128 KiB.
    check(
        &resolver(&sample()),
        &[
            (Decode, 1, TOP_K - 1, Dense, Some(CompactFlash), Reason::TopKCoversKv),
            (Decode, 1, TOP_K, Dense, Some(CompactFlash), Reason::TopKCoversKv),
            (Decode, 1, TOP_K + 1, CompactFlash, None, Reason::Recommended),
            (Decode, 1, 4_000_000, CompactFlash, None, Reason::Recommended),
            (ShortPrefill, 64, TOP_K, Dense, None, Reason::TopKCoversKv),
            (ShortPrefill, 64, TOP_K + 1, Dense, None, Reason::Recommended),
            // 128 x 256 x 4 is the budget exactly.
            (ShortPrefill, 128, 255, Dense, None, Reason::Recommended),
            (ShortPrefill, 128, 256, Dense, None, Reason::Recommended),
            (ShortPrefill, 128, 257, SparseChunked, Some(Dense), Reason::DenseMaskOverBudget),
            (LongPrefill, 64, TOP_K, Dense, Some(SparseChunked), Reason::TopKCoversKv),
            (LongPrefill, 64, TOP_K + 1, SparseChunked, None, Reason::Recommended),
            (Verify, 2, TOP_K, Dense, Some(DirectSparse), Reason::TopKCoversKv),
            (Verify, 2, TOP_K + 1, DirectSparse, None, Reason::Auto),
        ],
    );
}

#[test]
fn compact_flash_pays_from_its_threshold_on() {
    let at = |min: u64| generation(json!({}), json!({"compact_flash_min_kv": min, "dense_mask_max_bytes": 400}));
    let below = Reason::BelowCompactFlashMinKv;
    check(
        &with(&at(100), |config| config.capability = Capability::of(Backend::Cuda)),
        &[
            (Decode, 1, 99, Dense, Some(CompactFlash), below),
            (Decode, 1, 100, CompactFlash, None, Reason::Recommended),
            (Decode, 1, 101, CompactFlash, None, Reason::Recommended),
            (Verify, 1, 99, Dense, Some(CompactFlash), below),
            (Verify, 1, 100, CompactFlash, None, Reason::Auto),
            // The mask of two rows is over the budget of 400 bytes: neither compact-flash nor dense.
            (Verify, 2, 99, SparseChunked, Some(CompactFlash), below),
        ],
    );
    // What the CPU attends to in place is not gathered: the threshold is none of its business.
    check(
        &resolver(&at(100)),
        &[(Decode, 1, 99, Dense, Some(CompactFlash), below), (Verify, 2, 99, DirectSparse, None, Reason::Auto)],
    );
    // The default is 1: every cache has a row.
    let built_in = generation(json!({}), json!({}));
    let blind = with(&built_in, |config| config.top_k = Some(0));
    check(&blind, &[(Decode, 1, 1, CompactFlash, None, Reason::Recommended)]);
}

#[test]
fn the_length_of_the_prompt_tells_short_from_long() {
    let resolver = resolver(&sample());
    for (n_prompt, phase) in [(1, ShortPrefill), (127, ShortPrefill), (128, ShortPrefill), (129, LongPrefill)] {
        assert_eq!(resolver.prefill(n_prompt), phase, "{n_prompt}");
    }
    let built_in = Resolver::default();
    assert_eq!((built_in.prefill(2048), built_in.prefill(2049)), (ShortPrefill, LongPrefill));
    let none = with(&generation(json!({}), json!({"short_prefill_max_tokens": 0})), |_| {});
    assert_eq!(none.prefill(1), LongPrefill);
    let all = with(&generation(json!({}), json!({"short_prefill_max_tokens": u64::MAX})), |_| {});
    assert_eq!(all.prefill(u32::MAX), ShortPrefill);
}

#[test]
fn every_path_a_package_may_name_is_taken_in_every_phase() {
    for phase in Phase::ALL {
        for path in Path::ALL {
            let generation = generation(json!({phase.label(): path.label()}), json!({}));
            let decision = resolver(&generation).resolve(&Inputs::new(*phase, 2, TOP_K + 1));
            assert_eq!(decision.selected, *path, "{phase}");
            assert_eq!((decision.recommended, decision.reason), ((*path).into(), Reason::Recommended));
            assert!(!decision.departs());
        }
    }
}

#[test]
fn auto_goes_by_phase_and_thresholds() {
    let auto = json!({"decode": "auto", "short_prefill": "auto", "long_prefill": "auto"});
    let auto = generation(auto, json!({"compact_flash_min_kv": 100, "dense_mask_max_bytes": 4096}));
    check(
        &resolver(&auto),
        &[
            (Decode, 1, TOP_K + 1, DirectSparse, None, Reason::Auto),
            (Decode, 1, 4_000_000, DirectSparse, None, Reason::Auto),
            (Decode, 1, TOP_K, Dense, Some(DirectSparse), Reason::TopKCoversKv),
            (ShortPrefill, 8, 128, Dense, None, Reason::Auto),
            (ShortPrefill, 8, 129, SparseChunked, Some(Dense), Reason::DenseMaskOverBudget),
            (LongPrefill, 8, 129, SparseChunked, None, Reason::Auto),
            (Verify, 8, 129, DirectSparse, None, Reason::Auto),
            (Verify, 8, 64, Dense, Some(DirectSparse), Reason::TopKCoversKv),
        ],
    );
    // A backend that has to gather the rows: no path that it lacks is told as rejected.
    check(
        &resolver(&auto).on(Capability::of(Backend::Metal)),
        &[
            (Decode, 1, 100, CompactFlash, None, Reason::Auto),
            (Decode, 1, 99, Dense, Some(CompactFlash), Reason::BelowCompactFlashMinKv),
            (LongPrefill, 8, 129, SparseChunked, None, Reason::Auto),
            (Verify, 8, 129, CompactFlash, None, Reason::Auto),
            (Verify, 8, 64, Dense, Some(CompactFlash), Reason::TopKCoversKv),
        ],
    );
    let covered = resolver(&auto).resolve(&Inputs::new(Decode, 1, TOP_K));
    assert!(!covered.departs(), "what auto leads to departs from nothing");
}

#[test]
fn a_package_that_says_nothing_gets_the_default_of_the_architecture() {
    let nothing = Generation::default();
    let rows: &[Row] = &[
        (Decode, 1, 100, CompactFlash, None, Reason::BuiltInDefault),
        (ShortPrefill, 8, 100, Dense, None, Reason::BuiltInDefault),
        (LongPrefill, 8, 100, SparseChunked, None, Reason::BuiltInDefault),
        (Verify, 8, 100, DirectSparse, None, Reason::BuiltInDefault),
        (Decode, 1, TOP_K, Dense, Some(CompactFlash), Reason::TopKCoversKv),
    ];
    for architecture in ["glm-dsa", "deepseek32"] {
        let resolver = with(&nothing, |config| config.architecture = architecture);
        check(&resolver, rows);
        let decision = resolver.resolve(&Inputs::new(Decode, 1, 100));
        assert_eq!((resolver.profile(), decision.recommended), (Profile::None, Recommended::None));
        assert!(!decision.departs());
    }
    // The same for a phase that the policy leaves out; the profile stays.
    let partly = resolver(&generation(json!({"decode": null}), json!({})));
    check(&partly, &[(Decode, 1, 100, CompactFlash, None, Reason::BuiltInDefault)]);
    assert_eq!(partly.profile(), Profile::GlmDsaV1);
    // Without a known top-k nothing counts as covered.
    check(&Resolver::default(), &[(Decode, 1, 1, CompactFlash, None, Reason::BuiltInDefault)]);
}

#[test]
fn a_model_without_an_indexer_attends_densely_and_needs_no_mask() {
    let llama = |config: &mut ResolverConfig<'_>| (config.architecture, config.top_k) = ("llama", None);
    for phase in Phase::ALL {
        let decision = with(&Generation::default(), llama).resolve(&Inputs::new(*phase, 65_536, 65_536));
        let got = (decision.selected, decision.reason, decision.dense_mask_avoided_bytes);
        assert_eq!(got, (Dense, Reason::BuiltInDefault, 0), "{phase}");
    }
    let resolver = with(&sample(), llama);
    check(
        &resolver,
        &[
            (Decode, 1, 1, Dense, Some(CompactFlash), Reason::NoIndexer),
            (LongPrefill, 65_536, 65_536, Dense, Some(SparseChunked), Reason::NoIndexer),
            (ShortPrefill, 65_536, 65_536, Dense, None, Reason::Recommended),
        ],
    );
}

#[test]
fn unknown_values_are_served_by_the_named_fallback() {
    for phase in Phase::ALL {
        for (value, reason) in [
            (json!({"profile": "glm-dsa-v2"}), Reason::UnknownProfile),
            (json!({"profile": 7}), Reason::UnknownProfile),
            (json!({phase.label(): "Dense"}), Reason::UnknownValue),
            (json!({phase.label(): ["dense"]}), Reason::UnknownValue),
        ] {
            let generation = generation(value, json!({}));
            let resolver = resolver(&generation);
            for n_kv in [1, TOP_K, TOP_K + 1, 1 << 20] {
                let decision = resolver.resolve(&Inputs::new(*phase, 1, n_kv));
                assert_eq!((decision.selected, decision.reason), (Fallback, reason), "{phase} over {n_kv}");
                assert_eq!(decision.recommended, Recommended::Unknown);
                assert!(decision.departs());
                // An explicit override says what to do, and is believed.
                let forced = Inputs { path: Some(SparseChunked), ..Inputs::new(*phase, 1, n_kv) };
                let decision = resolver.resolve(&forced);
                assert_eq!((decision.selected, decision.reason), (SparseChunked, Reason::Override));
            }
        }
    }
    let one = resolver(&generation(json!({"decode": "warp"}), json!({})));
    check(&one, &[(LongPrefill, 8, 100, SparseChunked, None, Reason::Recommended)]);
    assert_eq!(one.profile(), Profile::GlmDsaV1);
    let all = resolver(&generation(json!({"profile": "other-v1"}), json!({})));
    assert_eq!(all.profile(), Profile::Unknown);
}

#[test]
fn a_request_beats_the_configuration_and_the_configuration_the_package() {
    let overrides = Overrides {
        decode: Some(DirectSparse),
        short_prefill: Some(SparseChunked),
        long_prefill: Some(CompactFlash),
        verify: Some(Fallback),
    };
    let resolver = with(&sample(), |config| config.overrides = overrides);
    check(
        &resolver,
        &[
            // An override holds where the package's choice would not pay.
            (Decode, 1, 1, DirectSparse, None, Reason::Override),
            (Decode, 1, 100, DirectSparse, None, Reason::Override),
            (ShortPrefill, 8, 8, SparseChunked, None, Reason::Override),
            (LongPrefill, 8, 8, CompactFlash, None, Reason::Override),
            (Verify, 2, 2, Fallback, None, Reason::Override),
        ],
    );
    for phase in Phase::ALL {
        for path in Path::ALL {
            for n_kv in [1, 31, 32, TOP_K, TOP_K + 1] {
                let inputs = Inputs { path: Some(*path), ..Inputs::new(*phase, 1, n_kv) };
                let decision = resolver.resolve(&inputs);
                assert_eq!((decision.selected, decision.reason), (*path, Reason::Override), "{phase} {n_kv}");
                assert_eq!(decision.departs(), decision.recommended != (*path).into());
            }
        }
    }
}

#[test]
fn an_override_that_cannot_be_taken_gives_way_visibly() {
    let overrides = Overrides { decode: Some(DirectSparse), ..Overrides::default() };
    let cuda = with(&sample(), |config| {
        (config.capability, config.overrides) = (Capability::of(Backend::Cuda), overrides);
    });
    // To the package's choice, which may itself not be worth while.
    check(
        &cuda,
        &[
            (Decode, 1, 100, CompactFlash, Some(DirectSparse), Reason::BackendUnsupported),
            (Decode, 1, 10, Dense, Some(DirectSparse), Reason::BackendUnsupported),
        ],
    );
    // The request's is seen first, then the configuration's.
    let forced = |n_tokens, n_kv, path| Inputs { path: Some(path), ..Inputs::new(LongPrefill, n_tokens, n_kv) };
    let decision = cuda.resolve(&forced(128, 257, Dense));
    let got = (decision.selected, decision.rejected, decision.reason);
    assert_eq!(got, (SparseChunked, Some(Dense), Reason::DenseMaskOverBudget), "a mask is memory, forced or not");
    assert!(decision.departs());
    let both = Inputs { path: Some(DirectSparse), ..Inputs::new(Decode, 1, 100) };
    let configured = Overrides { decode: Some(Fallback), ..Overrides::default() };
    let cuda = with(&sample(), |config| {
        (config.capability, config.overrides) = (Capability::of(Backend::Cuda), configured);
    });
    let decision = cuda.resolve(&both);
    assert_eq!((decision.selected, decision.reason), (Fallback, Reason::BackendUnsupported));
    // For an unknown value only the fallback is left.
    let unknown = generation(json!({"decode": "warp"}), json!({}));
    let unknown = with(&unknown, |config| config.capability = Capability::of(Backend::Metal));
    let decision = unknown.resolve(&both);
    assert_eq!((decision.selected, decision.recommended), (Fallback, Recommended::Unknown));
    assert_eq!((decision.rejected, decision.reason), (Some(DirectSparse), Reason::BackendUnsupported));
}

#[test]
fn what_a_backend_lacks_is_passed_over() {
    let on = |paths: &[Path]| {
        let capability = Capability { paths: PathSet::of(paths), ..Capability::of(Backend::Vulkan) };
        with(&sample(), |config| config.capability = capability)
    };
    let lacks = Reason::BackendUnsupported;
    check(
        &on(&[Dense]),
        &[
            (Decode, 1, 100, Dense, Some(CompactFlash), lacks),
            (LongPrefill, 8, 100, Dense, Some(SparseChunked), lacks),
            (LongPrefill, 128, 257, Fallback, Some(SparseChunked), lacks),
            (ShortPrefill, 128, 257, Fallback, Some(Dense), Reason::DenseMaskOverBudget),
            (Verify, 2, 100, Dense, Some(CompactFlash), lacks),
        ],
    );
    check(
        &on(&[CompactFlash]),
        &[
            // Covered, but there is no dense to take.
            (Decode, 1, TOP_K, CompactFlash, None, Reason::Recommended),
            (LongPrefill, 8, 100, CompactFlash, Some(SparseChunked), lacks),
            (ShortPrefill, 8, 100, CompactFlash, Some(Dense), lacks),
            (ShortPrefill, 8, 8, Fallback, Some(Dense), lacks),
        ],
    );
    check(&on(&[]), &[(Decode, 1, 100, Fallback, Some(CompactFlash), lacks)]);
}

#[test]
fn a_stage_that_starts_on_a_shared_layer_refuses_without_its_list() {
    let shared = |config: &mut ResolverConfig<'_>| config.roles = vec![Role::Shared, Role::Full];
    let unknown = generation(json!({"indexshare": "optional"}), json!({}));
    for generation in [sample(), Generation::default(), unknown] {
        let resolver = with(&generation, shared);
        for phase in Phase::ALL {
            for path in [None, Some(Fallback), Some(Dense)] {
                // Also where the list would name every row: nobody guesses.
                for n_kv in [1, TOP_K + 1] {
                    let there = Inputs { path, ..Inputs::new(*phase, 1, n_kv) };
                    assert!(!resolver.resolve(&there).refused);
                    let missing = resolver.resolve(&Inputs { has_list: false, ..there });
                    assert!(missing.refused && missing.departs());
                    assert_eq!(missing.reason, Reason::IndexshareStateMissing);
                }
            }
        }
    }
    let missing = Inputs { has_list: false, ..Inputs::new(Decode, 1, 100) };
    let full = with(&sample(), |config| config.roles = vec![Role::Full, Role::Shared]);
    assert!(!full.resolve(&missing).refused, "a full layer makes its own list");
    let llama = with(&sample(), |config| {
        shared(config);
        (config.architecture, config.top_k) = ("llama", None);
    });
    assert!(!llama.resolve(&missing).refused);
}

#[test]
fn the_mask_that_is_not_allocated_is_counted() {
    let resolver = resolver(&sample());
    let mask = |phase, n_tokens, n_kv, path| {
        let decision = resolver.resolve(&Inputs { path, ..Inputs::new(phase, n_tokens, n_kv) });
        (decision.dense_mask_bytes, decision.dense_mask_avoided_bytes)
    };
    assert_eq!(mask(Decode, 1, 100, None), (400, 400));
    assert_eq!(mask(ShortPrefill, 8, 100, None), (3200, 0), "dense allocates it");
    assert_eq!(mask(Decode, 1, TOP_K, None), (256, 0), "dense needs none when every row is selected");
    assert_eq!(mask(Decode, 1, TOP_K, Some(CompactFlash)), (256, 0));
    assert_eq!(mask(LongPrefill, 2048, 131_072, None), (1 << 30, 1 << 30));
    assert_eq!(mask(LongPrefill, 2048, 131_072, Some(Fallback)), (1 << 30, 1 << 30));
}

#[test]
fn the_threshold_that_decided_is_named() {
    let resolver = with(&generation(json!({}), json!({"compact_flash_min_kv": 100})), |_| {});
    let threshold = |phase, n_tokens, n_kv| resolver.resolve(&Inputs::new(phase, n_tokens, n_kv)).threshold();
    assert_eq!(threshold(Decode, 1, 99), Some(Threshold::CompactFlashMinKv));
    assert_eq!(threshold(Decode, 1, 100), None);
    assert_eq!(threshold(ShortPrefill, 8, 100), Some(Threshold::ShortPrefillMaxTokens));
    assert_eq!(threshold(ShortPrefill, 2048, 131_072), Some(Threshold::DenseMaskMaxBytes));
    assert_eq!(threshold(LongPrefill, 8, 8), None, "top-k decided");
    assert_eq!(resolver.limit(Threshold::CompactFlashMinKv), Limit { value: 100, from: Source::Package });
    assert_eq!(resolver.limit(Threshold::DenseMaskMaxBytes), Limit { value: 1 << 28, from: Source::BuiltIn });
}
