//! One row per rule of the spec's section Policy Resolution, then every combination against the rules that always hold.

mod invariants;
mod reports;
mod table;

use serde_json::{Value, json};

use super::*;
use crate::package::{
    Manifest,
    generation::{Generation, full_sample},
};

/// Selected rows of the model under test.
const TOP_K: u32 = 64;

/// `generation` with the spec's policy and small thresholds, and `changes` laid over its policy (null removes).
fn generation(changes: Value, thresholds: Value) -> Generation {
    let mut policy = json!({
        "profile": "glm-dsa-v1", "decode": "compact-flash", "short_prefill": "dense", "long_prefill": "sparse-chunked",
        "verify": "auto", "indexshare": "required", "experimental": {"selected_row_flash": "evidence-gated"},
    });
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(policy.as_object_mut().unwrap().remove(key)),
            value => policy[key] = value.clone(),
        }
    }
    let mut manifest = full_sample();
    manifest["generation"] = json!({"policy": policy, "thresholds": thresholds});
    Manifest::parse(manifest.to_string().as_bytes()).unwrap().generation.unwrap()
}

/// The spec's policy with thresholds of 128 tokens, 32 KV rows and 128 KiB.
fn sample() -> Generation {
    generation(
        json!({}),
        json!({"short_prefill_max_tokens": 128, "compact_flash_min_kv": 32, "dense_mask_max_bytes": 131_072}),
    )
}

/// A resolver for the sample model.
fn resolver(generation: &Generation) -> Resolver {
    with(generation, |_| {})
}

fn with(generation: &Generation, change: impl FnOnce(&mut ResolverConfig<'_>)) -> Resolver {
    let mut config = ResolverConfig { generation: Some(generation), top_k: Some(TOP_K), ..ResolverConfig::default() };
    change(&mut config);
    Resolver::new(config)
}
