//! Every combination of inputs, against what must hold for all of them.

use super::*;

/// Package values of a phase: every known one, an unknown one, none.
const VALUES: [Option<&str>; 8] = [
    Some("auto"),
    Some("dense"),
    Some("direct-sparse"),
    Some("compact-flash"),
    Some("sparse-chunked"),
    Some("fallback"),
    Some("warp"),
    None,
];

const FORCED: [Option<Path>; 6] = [
    None,
    Some(Path::Dense),
    Some(Path::DirectSparse),
    Some(Path::CompactFlash),
    Some(Path::SparseChunked),
    Some(Path::Fallback),
];

const MIN_KV: u32 = 100;
/// The mask of [`TOKENS`] rows over 200 KV rows.
const BUDGET: u64 = 8 * 200 * 4;
const TOKENS: u32 = 8;
/// Around top-k, around the threshold of compact-flash, around the budget.
const KV: [u32; 9] = [TOP_K - 1, TOP_K, TOP_K + 1, MIN_KV - 1, MIN_KV, MIN_KV + 1, 199, 200, 201];

fn for_all(mut check: impl FnMut(&Resolver, &Inputs)) {
    let thresholds = json!({"compact_flash_min_kv": MIN_KV, "dense_mask_max_bytes": BUDGET});
    let capabilities = [Capability::of(Backend::Cpu), Capability::of(Backend::Cuda)].into_iter().chain(
        [&[Path::Dense][..], &[Path::CompactFlash], &[]]
            .map(|paths| Capability { paths: PathSet::of(paths), ..Capability::of(Backend::Vulkan) }),
    );
    let capabilities: Vec<Capability> = capabilities.collect();
    for phase in Phase::ALL {
        for value in VALUES {
            for profile in [json!("glm-dsa-v1"), json!("glm-dsa-v2"), Value::Null] {
                let policy = json!({phase.label(): value, "profile": profile});
                let generation = generation(policy, thresholds.clone());
                for capability in &capabilities {
                    for configured in FORCED {
                        for (architecture, top_k) in [("glm-dsa", Some(TOP_K)), ("glm-dsa", None), ("llama", None)] {
                            let overrides = match phase {
                                Phase::Decode => Overrides { decode: configured, ..Overrides::default() },
                                Phase::ShortPrefill => Overrides { short_prefill: configured, ..Overrides::default() },
                                Phase::LongPrefill => Overrides { long_prefill: configured, ..Overrides::default() },
                                Phase::Verify => Overrides { verify: configured, ..Overrides::default() },
                            };
                            let resolver = with(&generation, |config| {
                                config.capability = capability.clone();
                                (config.overrides, config.architecture, config.top_k) =
                                    (overrides, architecture, top_k);
                                config.roles = vec![Role::Shared];
                            });
                            for path in FORCED {
                                for n_kv in KV {
                                    check(&resolver, &Inputs { path, ..Inputs::new(*phase, TOKENS, n_kv) });
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_combination_keeps_the_rules() {
    let mut n = 0;
    for_all(|resolver, inputs| {
        n += 1;
        let decision = resolver.resolve(inputs);
        let Decision { selected, reason, rejected, recommended, .. } = decision;
        let indexer = resolver.architecture == "glm-dsa";
        let covered = !indexer || resolver.top_k.is_some_and(|k| k >= inputs.n_kv);
        let configured = resolver.overrides.of(inputs.phase);
        let forced = inputs.path.or(configured);
        let context = || format!("{inputs:?} {decision:?} {configured:?} {:?}", resolver.capability);

        assert!(resolver.capability.has(selected), "the backend has it: {}", context());
        assert!(indexer || !selected.is_sparse(), "no selection without an indexer: {}", context());
        let over = inputs.dense_mask_bytes() > BUDGET;
        assert!(!(selected == Path::Dense && over && !covered), "no mask over the budget: {}", context());
        if [inputs.path, configured].contains(&Some(selected)) && forced == Some(selected) {
            assert_eq!((reason, rejected), (Reason::Override, None), "{}", context());
        } else {
            let min = selected == Path::CompactFlash && inputs.n_kv < MIN_KV && configured != Some(selected);
            assert!(!min, "compact-flash from its threshold on: {}", context());
            let dense = covered && resolver.capability.has(Path::Dense) && configured != Some(selected);
            assert!(!(dense && selected.is_sparse()), "nothing is scored in vain: {}", context());
        }
        // Unknown values are never taken for a path.
        if recommended == Recommended::Unknown && forced.is_none() {
            assert_eq!(selected, Path::Fallback, "{}", context());
            assert!(matches!(reason, Reason::UnknownProfile | Reason::UnknownValue), "{}", context());
        }
        // A named path is either taken or seen to be rejected, whoever names it.
        if let Some(path) = forced.or(recommended.path()) {
            assert!(selected == path || rejected == Some(path), "{}", context());
            assert_eq!(rejected.is_none(), selected == path, "{}", context());
        }
        if let Some(path) = recommended.path() {
            assert!(selected == path || decision.departs(), "{}", context());
        }
        assert!(!decision.refused);
        assert!(resolver.resolve(&Inputs { has_list: false, ..*inputs }).refused == indexer, "{}", context());
    });
    assert_eq!(n, 4 * 8 * 3 * 5 * 6 * 3 * 6 * 9);
}

#[test]
fn explanations_agree_with_decisions() {
    let mut n = 0u32;
    for_all(|resolver, inputs| {
        // Every eleventh: explanations allocate, and eleven is prime to all the lengths above.
        n += 1;
        if !n.is_multiple_of(11) {
            return;
        }
        let decision = resolver.resolve(inputs);
        let explanation = resolver.explain(inputs);
        assert_eq!((explanation.selected, explanation.reason), (decision.selected, decision.reason));
        let mut paths: Vec<Path> = explanation.candidates.iter().map(|candidate| candidate.path).collect();
        paths.sort_unstable();
        assert_eq!(paths, Path::ALL, "every path once");
        let selected: Vec<_> = explanation.candidates.iter().filter(|c| c.verdict == Verdict::Selected).collect();
        assert_eq!(selected.len(), 1);
        assert_eq!(selected[0].path, decision.selected);
        let before = explanation.candidates.iter().take_while(|candidate| candidate.verdict != Verdict::Selected);
        let before: Vec<_> = before.collect();
        assert!(before.iter().all(|candidate| candidate.verdict == Verdict::Rejected && candidate.reason.is_some()));
        assert_eq!(before.first().map(|candidate| candidate.path), decision.rejected);
        assert_eq!(before.first().and_then(|candidate| candidate.reason), decision.rejected.and(Some(decision.reason)));
    });
}
