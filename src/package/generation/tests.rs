//! One row per rule of the spec's sections Execution Policy and Speculative Decoding.

use serde_json::json;

use super::*;
use crate::package::manifest::{Manifest, ManifestError, sample_manifest};

/// The spec's own examples, put together, for a model of 3 layers whose last one is the MTP block.
fn generation() -> Value {
    json!({
        "policy": {
            "profile": "glm-dsa-v1",
            "decode": "compact-flash",
            "short_prefill": "dense",
            "long_prefill": "sparse-chunked",
            "verify": "auto",
            "indexshare": "required",
            "experimental": {
                "moe_merged_shared_gate_up": "evidence-gated",
                "moe_weighted_down": "evidence-gated",
                "selected_row_flash": "evidence-gated",
            },
        },
        "thresholds": {
            "short_prefill_max_tokens": 2048,
            "compact_flash_min_kv": 1,
            "dense_mask_max_bytes": 268_435_456u64,
        },
        "speculative_decoding": {
            "default": "mtp-cache",
            "proposers": {
                "mtp": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [2]},
                "cache": {
                    "type": "ngram-cache", "ngram_min": 2, "ngram_max": 4, "max_proposal_tokens": 10,
                    "history_scope": "request",
                },
                "suffix": {"type": "ngram-suffix", "ngram_min": 3, "ngram_max": 64, "history_scope": "request"},
            },
            "strategies": {
                "mtp": {"type": "native-mtp", "proposer": "mtp"},
                "mtp-inline": {
                    "type": "native-mtp",
                    "prediction_depth": 1,
                    "layer_indices": [2],
                    "window_policy": {
                        "default": "fixed", "initial_window": 1, "min_window": 1, "max_window": 1, "pipeline_depth": 1,
                    },
                },
                "ngram-cache": {"type": "ngram-cache", "proposer": "cache"},
                "ngram-suffix": {"type": "ngram-suffix", "proposer": "suffix", "window_policy": {"pipeline_depth": 2}},
                "mtp-cache": {
                    "type": "composite", "primary": "mtp", "extender": "cache",
                    "extension_policy": {"initial_tokens": 2, "max_tokens": 8, "tail_backoff_proposals": 3},
                },
                "draft": {"type": "draft-model", "draft_model": "org/tiny", "window_policy": {"default": "adaptive"}},
            },
        },
    })
}

fn manifest(generation: Value) -> Value {
    let mut value = sample_manifest();
    value["generation"] = generation;
    value
}

pub(crate) fn full_sample() -> Value {
    manifest(generation())
}

fn parse(generation: Value) -> Result<Generation, ManifestError> {
    let manifest = Manifest::parse(manifest(generation).to_string().as_bytes())?;
    Ok(manifest.generation.unwrap())
}

fn with(pointer: &str, new: Value) -> Value {
    let mut value = generation();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = value.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if new.is_null() {
        parent.shift_remove(key)
    } else {
        parent.insert(key.into(), new)
    };
    value
}

#[test]
fn reads_and_writes_the_shape_of_the_spec() {
    let parsed = parse(generation()).unwrap();
    assert_eq!(serde_json::to_value(&parsed).unwrap(), generation());
    assert_eq!(parsed.unsupported(), []);
    let policy = parsed.policy.unwrap();
    assert_eq!(policy.profile, Some(Open::Known(Profile::GlmDsaV1)));
    assert_eq!(policy.decode.unwrap().known(), Some(PolicyPath::CompactFlash));
    assert_eq!(policy.experimental[Switch::MoeWeightedDown.name()].known(), Some(Gate::EvidenceGated));
    assert_eq!(parsed.thresholds.unwrap().dense_mask_max_bytes, Some(1 << 28));
    let speculation = parsed.speculative_decoding.unwrap();
    let Some(DefaultStrategy::Supported("mtp-cache", strategy)) = speculation.default_strategy() else { panic!() };
    let StrategyKind::Composite(composite) = &strategy.kind else { panic!("{strategy:?}") };
    assert_eq!(speculation.native_mtp(&composite.primary).unwrap().layer_indices, [2]);
    assert_eq!(speculation.ngram(&composite.extender).unwrap().kind, NgramKind::Cache);
    assert_eq!(composite.extension_policy.as_ref().unwrap().max_tokens, Some(8));
    assert_eq!(speculation.strategies["ngram-suffix"].window_policy.as_ref().unwrap().depth(), 2);
    assert_eq!(WindowPolicy::default().depth(), 1);
}

#[test]
fn unknown_values_are_kept_and_reported_never_reinterpreted() {
    for (pointer, new, field) in [
        ("/policy/profile", json!("glm-dsa-v2"), "generation.policy.profile"),
        ("/policy/decode", json!("Compact-Flash"), "generation.policy.decode"),
        ("/policy/short_prefill", json!("densest"), "generation.policy.short_prefill"),
        ("/policy/long_prefill", json!(7), "generation.policy.long_prefill"),
        ("/policy/verify", json!({"path": "auto"}), "generation.policy.verify"),
        ("/policy/indexshare", json!("optional"), "generation.policy.indexshare"),
        ("/policy/metal", json!("on"), "generation.policy.metal"),
        ("/policy/experimental/selected_row_flash", json!("on"), "generation.policy.experimental.selected_row_flash"),
        ("/policy/experimental/later", json!("evidence-gated"), "generation.policy.experimental.later"),
        ("/glm_dsa", json!({"decode": "dense"}), "generation.glm_dsa"),
        ("/speculative_decoding/later", json!(1), "generation.speculative_decoding.later"),
        (
            "/speculative_decoding/proposers/eagle",
            json!({"type": "eagle", "depth": 5}),
            "generation.speculative_decoding.proposers.eagle.type",
        ),
        (
            "/speculative_decoding/strategies/tree",
            json!({"type": "tree", "window_policy": {"pipeline_depth": 0}}),
            "generation.speculative_decoding.strategies.tree.type",
        ),
        (
            "/speculative_decoding/strategies/mtp-inline/window_policy/default",
            json!("wild"),
            "generation.speculative_decoding.strategies.mtp-inline.window_policy.default",
        ),
    ] {
        let value = with(pointer, new);
        let parsed = parse(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&parsed).unwrap(), value, "{pointer}");
        let fields: Vec<_> = parsed.unsupported().into_iter().map(|unsupported| unsupported.field).collect();
        assert_eq!(fields, [field]);
    }
}

#[test]
fn unknown_thresholds_are_hints() {
    let value = with("/thresholds/later", json!("anything"));
    let parsed = parse(value.clone()).unwrap();
    assert_eq!(parsed.unsupported(), []);
    assert_eq!(serde_json::to_value(&parsed).unwrap(), value);
}

#[test]
fn an_unknown_default_strategy_parses_and_is_named() {
    let mut value = with("/speculative_decoding/strategies/tree", json!({"type": "tree"}));
    value["speculative_decoding"]["default"] = json!("tree");
    let speculation = parse(value).unwrap().speculative_decoding.unwrap();
    let Some(DefaultStrategy::Unsupported(unsupported)) = speculation.default_strategy() else { panic!() };
    assert_eq!(
        unsupported.to_string(),
        "`generation.speculative_decoding.strategies.tree.type`: \"tree\" is not supported by this version"
    );
}

/// One broken rule: place, new value, field named (below `generation.`), and what the message must say.
#[rustfmt::skip]
fn broken() -> Vec<(&'static str, Value, &'static str, [&'static str; 2])> {
    let removed = Value::Null;
    let mtp = |depth: Value, layers: Value| json!({"type": "native-mtp", "prediction_depth": depth, "layer_indices": layers});
    let cache = |min: u32, max: u32| json!({"type": "ngram-cache", "ngram_min": min, "ngram_max": max, "history_scope": "request"});
    let suffix = |min: u32, max: u32| json!({"type": "ngram-suffix", "ngram_min": min, "ngram_max": max, "history_scope": "request"});
    let window = |window: Value| json!({"type": "native-mtp", "proposer": "mtp", "window_policy": window});
    let composite = |primary: &str, extender: &str| json!({"type": "composite", "primary": primary, "extender": extender});
    let extension = |policy: Value| json!({"type": "composite", "primary": "mtp", "extender": "cache", "extension_policy": policy});
    const P: &str = "/speculative_decoding/proposers/x";
    const S: &str = "/speculative_decoding/strategies/x";
    vec![
        ("/policy", json!("glm"), "policy", ["got \"glm\"", "an object"]),
        ("/policy/experimental", json!([]), "policy.experimental", ["got a list of 0", "an object"]),
        ("/thresholds", json!(1), "thresholds", ["got 1", "an object"]),
        ("/thresholds/short_prefill_max_tokens", json!(-1), "thresholds.short_prefill_max_tokens", ["got -1", "a non-negative integer"]),
        ("/thresholds/compact_flash_min_kv", json!("1"), "thresholds.compact_flash_min_kv", ["got \"1\"", "a non-negative integer"]),
        ("/thresholds/dense_mask_max_bytes", json!(1.5), "thresholds.dense_mask_max_bytes", ["got 1.5", "a non-negative integer"]),
        ("/speculative_decoding", json!([]), "speculative_decoding", ["got a list of 0", "an object"]),
        ("/speculative_decoding/proposers", json!([]), "speculative_decoding.proposers", ["got a list of 0", "an object"]),
        ("/speculative_decoding/strategies", json!(1), "speculative_decoding.strategies", ["got 1", "an object"]),
        ("/speculative_decoding/default", json!(""), "speculative_decoding.default", ["got \"\"", "one of the declared strategies: `draft`, "]),
        ("/speculative_decoding/default", json!("nope"), "speculative_decoding.default", ["got \"nope\"", "one of the declared strategies"]),
        ("/speculative_decoding/default", json!("disabled"), "speculative_decoding.default", ["got \"disabled\"", "one of the declared strategies"]),
        ("/speculative_decoding/default", json!(1), "speculative_decoding.default", ["got 1", "one of the declared strategies"]),
        ("/speculative_decoding/strategies", removed.clone(), "speculative_decoding.default", ["got \"mtp-cache\"", "none is declared"]),
        ("/speculative_decoding/strategies/disabled", json!({"type": "native-mtp", "proposer": "mtp"}), "speculative_decoding.strategies.disabled", ["a strategy", "not a strategy of a package"]),
        (P, json!("x"), "speculative_decoding.proposers.x", ["got \"x\"", "an object"]),
        (P, json!({}), "speculative_decoding.proposers.x.type", ["got nothing", "a non-empty string"]),
        (P, mtp(json!(2), json!([2])), "speculative_decoding.proposers.x.prediction_depth", ["got 2", "expected 1"]),
        (P, mtp(json!(null), json!([2])), "speculative_decoding.proposers.x.prediction_depth", ["got nothing", "an integer"]),
        (P, mtp(json!(1), json!([])), "speculative_decoding.proposers.x.layer_indices", ["got a list of 0", "at least one"]),
        (P, mtp(json!(1), json!(null)), "speculative_decoding.proposers.x.layer_indices", ["got nothing", "at least one"]),
        (P, mtp(json!(1), json!(2)), "speculative_decoding.proposers.x.layer_indices", ["got 2", "a list"]),
        (P, mtp(json!(1), json!([1, 3])), "speculative_decoding.proposers.x.layer_indices[1]", ["got 3", "below `layer_count` (3)"]),
        (P, mtp(json!(1), json!([1, 1])), "speculative_decoding.proposers.x.layer_indices[1]", ["got 1 a second time", "each layer once"]),
        (P, mtp(json!(1), json!(["2"])), "speculative_decoding.proposers.x.layer_indices[0]", ["got \"2\"", "a layer number"]),
        (P, cache(2, 5), "speculative_decoding.proposers.x.ngram_max", ["got 5", "1 to 4 tokens"]),
        (P, cache(0, 4), "speculative_decoding.proposers.x.ngram_min", ["got 0", "1 to 4 tokens"]),
        (P, cache(4, 2), "speculative_decoding.proposers.x.ngram_min", ["got 4", "at most `ngram_max` (2)"]),
        (P, suffix(2, 8), "speculative_decoding.proposers.x.ngram_min", ["got 2", "3 to 64 tokens"]),
        (P, suffix(3, 65), "speculative_decoding.proposers.x.ngram_max", ["got 65", "3 to 64 tokens"]),
        (P, suffix(9, 8), "speculative_decoding.proposers.x.ngram_min", ["got 9", "at most `ngram_max` (8)"]),
        ("/speculative_decoding/proposers/cache/ngram_min", removed.clone(), "speculative_decoding.proposers.cache.ngram_min", ["got nothing", "an integer"]),
        ("/speculative_decoding/proposers/cache/ngram_max", removed.clone(), "speculative_decoding.proposers.cache.ngram_max", ["got nothing", "an integer"]),
        ("/speculative_decoding/proposers/cache/max_proposal_tokens", json!(0), "speculative_decoding.proposers.cache.max_proposal_tokens", ["got 0", "an integer above 0"]),
        ("/speculative_decoding/proposers/cache/max_proposal_tokens", json!(-3), "speculative_decoding.proposers.cache.max_proposal_tokens", ["got -3", "an integer"]),
        ("/speculative_decoding/proposers/cache/history_scope", json!("session"), "speculative_decoding.proposers.cache.history_scope", ["got \"session\"", "\"request\""]),
        ("/speculative_decoding/proposers/suffix/history_scope", removed, "speculative_decoding.proposers.suffix.history_scope", ["got nothing", "\"request\""]),
        (S, json!({"type": ""}), "speculative_decoding.strategies.x.type", ["got \"\"", "a non-empty string"]),
        (S, json!({"type": "native-mtp"}), "speculative_decoding.strategies.x.layer_indices", ["got nothing", "at least one"]),
        (S, mtp(json!(2), json!([2])), "speculative_decoding.strategies.x.prediction_depth", ["got 2", "expected 1"]),
        (S, mtp(json!(1), json!([47])), "speculative_decoding.strategies.x.layer_indices[0]", ["got 47", "below `layer_count` (3)"]),
        (S, json!({"type": "native-mtp", "proposer": "nope"}), "speculative_decoding.strategies.x.proposer", ["got \"nope\"", "declared are `cache`, `mtp`, `suffix`"]),
        (S, json!({"type": "native-mtp", "proposer": "cache"}), "speculative_decoding.strategies.x.proposer", ["type `ngram-cache`", "a proposer of type `native-mtp`"]),
        (S, json!({"type": "native-mtp", "proposer": "mtp", "layer_indices": [1]}), "speculative_decoding.strategies.x.layer_indices", ["got [1]", "[2], the layers of the proposer"]),
        (S, json!({"type": "native-mtp", "proposer": "mtp", "prediction_depth": 3}), "speculative_decoding.strategies.x.prediction_depth", ["got 3", "expected 1"]),
        (S, json!({"type": "ngram-cache"}), "speculative_decoding.strategies.x.proposer", ["got nothing", "a non-empty string"]),
        (S, json!({"type": "ngram-cache", "proposer": "suffix"}), "speculative_decoding.strategies.x.proposer", ["type `ngram-suffix`", "a proposer of type `ngram-cache`"]),
        (S, json!({"type": "ngram-suffix", "proposer": "mtp"}), "speculative_decoding.strategies.x.proposer", ["type `native-mtp`", "a proposer of type `ngram-suffix`"]),
        (S, composite("cache", "cache"), "speculative_decoding.strategies.x.primary", ["type `ngram-cache`", "a proposer of type `native-mtp`"]),
        (S, composite("mtp", "mtp"), "speculative_decoding.strategies.x.extender", ["type `native-mtp`", "`ngram-cache` or `ngram-suffix`"]),
        (S, composite("nope", "cache"), "speculative_decoding.strategies.x.primary", ["got \"nope\"", "declared are"]),
        (S, composite("mtp", "nope"), "speculative_decoding.strategies.x.extender", ["got \"nope\"", "declared are"]),
        (S, json!({"type": "composite", "primary": "mtp"}), "speculative_decoding.strategies.x.extender", ["got nothing", "a non-empty string"]),
        (S, extension(json!({"max_tokens": 0})), "speculative_decoding.strategies.x.extension_policy.max_tokens", ["got 0", "above 0"]),
        (S, extension(json!({"initial_tokens": 9, "max_tokens": 8})), "speculative_decoding.strategies.x.extension_policy.initial_tokens", ["got 9", "at most `max_tokens` (8)"]),
        (S, extension(json!({"tail_backoff_proposals": -1})), "speculative_decoding.strategies.x.extension_policy.tail_backoff_proposals", ["got -1", "an integer"]),
        (S, extension(json!(8)), "speculative_decoding.strategies.x.extension_policy", ["got 8", "an object"]),
        (S, window(json!({"pipeline_depth": 0})), "speculative_decoding.strategies.x.window_policy.pipeline_depth", ["got 0", "above 0"]),
        (S, window(json!({"max_window": 0})), "speculative_decoding.strategies.x.window_policy.max_window", ["got 0", "above 0"]),
        (S, window(json!({"min_window": 3, "max_window": 2})), "speculative_decoding.strategies.x.window_policy.min_window", ["got 3", "at most `max_window` (2)"]),
        (S, window(json!({"min_window": 3, "initial_window": 2})), "speculative_decoding.strategies.x.window_policy.min_window", ["got 3", "at most `initial_window` (2)"]),
        (S, window(json!({"initial_window": 3, "max_window": 2})), "speculative_decoding.strategies.x.window_policy.initial_window", ["got 3", "at most `max_window` (2)"]),
        (S, window(json!("fixed")), "speculative_decoding.strategies.x.window_policy", ["got \"fixed\"", "an object"]),
    ]
}

#[test]
fn every_broken_rule_names_field_got_and_expected() {
    for (pointer, new, field, words) in broken() {
        let error = parse(with(pointer, new.clone())).expect_err(&format!("{pointer} = {new}"));
        let field = format!("generation.{field}");
        let fault = error.faults().find(|fault| fault.field == field);
        let fault = fault.unwrap_or_else(|| panic!("{pointer} = {new}: {error:?}"));
        for word in words {
            assert!(fault.to_string().contains(word), "{pointer} = {new}: {fault} lacks {word}");
        }
    }
}

#[test]
fn a_broken_proposer_is_reported_once() {
    let error = parse(with("/speculative_decoding/proposers/mtp/prediction_depth", json!(2))).unwrap_err();
    let fields: Vec<_> = error.faults().map(|fault| fault.field.as_str()).collect();
    assert_eq!(fields, ["generation.speculative_decoding.proposers.mtp.prediction_depth"]);
}
