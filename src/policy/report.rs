//! The resolved contract of a stage: what holds before any request comes.

use serde::Serialize;
use serde_json::Value;

use super::{
    Capability, Exhibit, Limits, Path, Phase, Profile, Recommended, Resolver, Role, Source, SwitchState, plan::built_in,
};
use crate::package::generation::Unsupported;

/// Everything that the resolver decides by, with its origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contract {
    /// `general.architecture`.
    pub architecture: String,
    /// KV rows that the indexer selects.
    pub top_k: Option<u32>,
    /// Where the stage's layers get their lists, in order; empty when the model has no indexer.
    pub indexshare_roles: Vec<Role>,
    /// What shared layers without a list do: `required`, they refuse.
    pub indexshare: &'static str,
    /// The package's profile, as a label.
    pub profile: Profile,
    /// `generation.policy` of the package as written.
    pub package_policy: Value,
    /// Values of the package that this version does not know.
    pub unsupported: Vec<Unsupported>,
    /// Phase by phase.
    pub phases: Vec<PhaseContract>,
    /// The thresholds that hold.
    pub thresholds: Limits,
    /// What the backend can do.
    pub capability: Capability,
    /// Experimental switches.
    pub switches: Vec<SwitchState>,
    /// Measurements that switches are held against; null without any.
    pub evidence: Option<Exhibit>,
}

/// What holds for one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseContract {
    /// The phase.
    pub phase: Phase,
    /// What the package asks for.
    pub recommended: Recommended,
    /// The default of the architecture.
    pub built_in: Recommended,
    /// Path that command line, environment or configuration force.
    pub configured_override: Option<Path>,
    /// Who decides, unless a request does.
    pub decided_by: Source,
    /// What is tried, in order, when that cannot be taken or leaves the choice.
    pub alternatives: &'static [Path],
}

impl Resolver {
    /// The contract.
    pub fn contract(&self) -> Contract {
        let phase = |phase: &Phase| {
            let plan = self.plan(*phase);
            let configured_override = self.overrides.of(*phase);
            PhaseContract {
                phase: *phase,
                recommended: plan.recommended,
                built_in: built_in(&self.architecture, *phase),
                configured_override,
                decided_by: match (configured_override, plan.asked) {
                    (Some(_), _) => Source::Configuration,
                    (None, Some((_, source))) => source,
                    (None, None) => plan.rest,
                },
                alternatives: if plan.unknown.is_some() { &[Path::Fallback] } else { self.alternatives(*phase) },
            }
        };
        Contract {
            architecture: self.architecture.clone(),
            top_k: self.top_k,
            indexshare_roles: self.roles.clone(),
            indexshare: "required",
            profile: self.profile,
            // A policy is made of strings: it always serialises.
            package_policy: serde_json::to_value(&self.policy).unwrap_or_default(),
            unsupported: self.unsupported.clone(),
            phases: Phase::ALL.iter().map(phase).collect(),
            thresholds: self.limits,
            capability: self.capability.clone(),
            switches: self.switches.clone(),
            evidence: self.evidence.clone(),
        }
    }
}
