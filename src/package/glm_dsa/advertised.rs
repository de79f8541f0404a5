//! Holds what a manifest advertises (`generation`) against what the model is.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value as Json;

use super::{Config, recommended_policy, recommended_thresholds};
use crate::package::{
    Code, Generation, Issue,
    generation::{Proposer, SpeculativeDecoding, StrategyKind},
    manifest::fields::{describe, shown},
};

/// One field of the generation policy: what the spec recommends and what the manifest declares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyField {
    /// For example `generation.policy.decode`.
    pub field: String,
    /// The spec's value.
    pub recommended: Json,
    /// The manifest's, known or not.
    pub declared: Option<Json>,
}

/// Every field of the policy and its thresholds.
pub(super) fn policy_fields(generation: Option<&Generation>) -> Vec<PolicyField> {
    let json = |value: serde_json::Result<Json>| value.unwrap_or_default();
    let recommended = [
        ("policy", json(serde_json::to_value(recommended_policy()))),
        ("thresholds", json(serde_json::to_value(recommended_thresholds()))),
    ];
    let declared = generation.map(|generation| json(serde_json::to_value(generation)));
    let mut fields = Vec::new();
    for (section, values) in recommended {
        collect(&format!("/{section}"), values, &mut |pointer, recommended| {
            let declared = declared.as_ref().and_then(|declared| declared.pointer(pointer)).cloned();
            let field = format!("generation{}", pointer.replace('/', "."));
            fields.push(PolicyField { field, recommended, declared });
        });
    }
    fields
}

/// Calls `found` with the JSON pointer and value of each leaf.
fn collect(pointer: &str, value: Json, found: &mut dyn FnMut(&str, Json)) {
    match value {
        Json::Object(fields) => {
            fields.into_iter().for_each(|(key, value)| collect(&format!("{pointer}/{key}"), value, found));
        }
        leaf => found(pointer, leaf),
    }
}

/// What is wrong with the generation block, or differs from what the spec recommends. `required` makes the profile
/// `glm-dsa-v1` and a supported value for each of its phases a duty.
pub(super) fn check(config: &Config, generation: Option<&Generation>, required: bool) -> Vec<Issue> {
    let mut issues = check_policy(generation, required);
    let speculation = generation.and_then(|generation| generation.speculative_decoding.as_ref());
    issues.extend(check_mtp(config, speculation, required));
    issues
}

fn check_policy(generation: Option<&Generation>, required: bool) -> Vec<Issue> {
    let mut issues = Vec::new();
    let unsupported = generation.map(Generation::unsupported).unwrap_or_default();
    let has_policy = generation.is_some_and(|generation| generation.policy.is_some());
    for PolicyField { field, recommended, declared } in policy_fields(generation) {
        let issue = |code, got: &str| {
            let message = format!("`{field}`: got {got}, expected {}", describe(&recommended));
            Issue::new(code, &field, message)
        };
        // Switches are closed without an entry, thresholds are hints, and both are read by type already.
        let phase = field.starts_with("generation.policy.") && !field.contains(".experimental.");
        let unknown = unsupported.iter().any(|unsupported| unsupported.field == field);
        match declared {
            None if phase && required => issues.push(issue(Code::MissingGenerationPolicy, "nothing")),
            None if has_policy && field == "generation.policy.profile" => {
                issues.push(issue(Code::GenerationPolicyDiffers, "nothing, so that the phases mean nothing for sure"));
            }
            Some(declared) if unknown && required => {
                let got = format!("{}, which this version does not know", describe(&declared));
                issues.push(issue(Code::MissingGenerationPolicy, &got));
            }
            Some(declared) if phase && !unknown && declared != recommended => {
                issues.push(issue(Code::GenerationPolicyDiffers, &describe(&declared)));
            }
            _ => {}
        }
    }
    let reported: BTreeSet<String> = issues.iter().map(|issue| issue.path.clone()).collect();
    issues.extend(unsupported.iter().filter(|unsupported| !reported.contains(&unsupported.field)).map(Issue::from));
    issues
}

/// Native MTP, as a proposer or in a strategy, is that of exactly the MTP blocks.
fn check_mtp(config: &Config, speculation: Option<&SpeculativeDecoding>, required: bool) -> Vec<Issue> {
    let blocks: BTreeSet<u32> = (config.trunk_layers..config.layer_count).collect();
    let mut issues = Vec::new();
    let mut declared = false;
    let mut layers = |field: String, indices: &[u32]| {
        declared = true;
        if indices.iter().copied().collect::<BTreeSet<_>>() == blocks {
            return;
        }
        let field = format!("generation.speculative_decoding.{field}.layer_indices");
        let expected = match blocks.is_empty() {
            true => "no native mtp: the model has no layer with `nextn` tensors".into(),
            false => format!("{blocks:?}, the layers with `nextn` tensors").replace(['{', '}'], ""),
        };
        let message = format!("`{field}`: got {indices:?}, expected {expected}");
        issues.push(Issue::new(Code::InvalidSpeculation, field, message));
    };
    for (id, proposer) in speculation.iter().flat_map(|speculation| &speculation.proposers) {
        if let Proposer::NativeMtp(mtp) = proposer {
            layers(format!("proposers.{}", shown(id)), &mtp.layer_indices);
        }
    }
    for (id, strategy) in speculation.iter().flat_map(|speculation| &speculation.strategies) {
        if let StrategyKind::NativeMtp(strategy) = &strategy.kind
            && let Some(indices) = &strategy.layer_indices
        {
            layers(format!("strategies.{}", shown(id)), indices);
        }
    }
    if required && !declared && !blocks.is_empty() {
        let field = "generation.speculative_decoding";
        let message = format!("`{field}`: got no native mtp, expected one, since the model has an mtp block");
        issues.push(Issue::new(Code::GenerationPolicyDiffers, field, message));
    }
    issues
}

#[cfg(test)]
mod tests;
