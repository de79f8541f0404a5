//! Which attention path a phase of a request takes, and why (spec, Policy Resolution).
//!
//! Pure: no engine, no clock, no allocation in [`Resolver::resolve`]. The order is override, package policy, built-in
//! default of the architecture, correctness fallback; `docs/policy.md` tells it to operators.

mod capability;
pub mod evidence;
mod explain;
mod model;
mod plan;
mod question;
mod report;
mod switches;
#[cfg(test)]
mod tests;
mod types;

use std::ops::ControlFlow;

pub use capability::{Backend, Capability, PathSet};
pub use evidence::{Evidence, EvidenceError, Exhibit, Origin};
pub use explain::{CandidateReport, Explanation, Verdict};
pub use plan::{Limit, Limits, Overrides, is_sparse_architecture};
pub use question::{Question, QuestionError};
pub use report::{Contract, PhaseContract};
pub use switches::{SWITCH_NAMES, Standing, SwitchState};
pub use types::{Decision, Inputs, Path, Phase, Profile, Reason, Recommended, Role, Source, Threshold, UnknownName};

use crate::package::generation::{Generation, Policy, Switch, Unsupported, Vocabulary as _};
use plan::PhasePlan;

/// Everything that a resolver is made from. The default is a package without policy for a GLM-DSA model, on the CPU.
#[derive(Clone, Debug)]
pub struct ResolverConfig<'a> {
    /// `generation` of the package: its policy and thresholds.
    pub generation: Option<&'a Generation>,
    /// `general.architecture` of the model.
    pub architecture: &'a str,
    /// KV rows that the indexer selects. `None` when the model has no indexer; of a sparse architecture, that nothing is
    /// known about its width, so that no KV counts as covered.
    pub top_k: Option<u32>,
    /// Where the stage's layers get their lists, in order. Without any, the first layer has its own indexer.
    pub roles: Vec<Role>,
    /// What the backend can do.
    pub capability: Capability,
    /// Paths forced for the whole process.
    pub overrides: Overrides,
    /// Evidence for experimental switches, if there is any.
    pub evidence: Option<Exhibit>,
}

impl Default for ResolverConfig<'_> {
    fn default() -> Self {
        Self {
            generation: None,
            architecture: "glm-dsa",
            top_k: None,
            roles: Vec::new(),
            capability: Capability::default(),
            overrides: Overrides::default(),
            evidence: None,
        }
    }
}

/// Everything about a stage that does not change from decision to decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolver {
    architecture: String,
    profile: Profile,
    /// The policy as declared, for reports.
    policy: Option<Policy>,
    unsupported: Vec<Unsupported>,
    /// In the order of [`Phase::ALL`].
    plans: [PhasePlan; 4],
    limits: Limits,
    overrides: Overrides,
    capability: Capability,
    has_indexer: bool,
    top_k: Option<u32>,
    roles: Vec<Role>,
    evidence: Option<Exhibit>,
    switches: Vec<SwitchState>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(ResolverConfig::default())
    }
}

impl Resolver {
    /// Parses the package's policy once.
    pub fn new(config: ResolverConfig<'_>) -> Self {
        let ResolverConfig { generation, architecture, top_k, roles, capability, overrides, evidence } = config;
        let policy = generation.and_then(|generation| generation.policy.as_ref());
        let thresholds = generation.and_then(|generation| generation.thresholds.as_ref());
        let plan = |phase| PhasePlan::of(policy, architecture, phase);
        let mut resolver = Self {
            architecture: architecture.to_owned(),
            profile: plan::profile(policy),
            policy: policy.cloned(),
            unsupported: generation.map(Generation::unsupported).unwrap_or_default(),
            plans: [Phase::Decode, Phase::ShortPrefill, Phase::LongPrefill, Phase::Verify].map(plan),
            limits: Limits::of(thresholds),
            overrides,
            capability,
            has_indexer: top_k.is_some() || is_sparse_architecture(architecture),
            top_k,
            roles,
            evidence,
            switches: Vec::new(),
        };
        resolver.set_switches();
        resolver
    }

    /// The same stage on another backend.
    pub fn on(mut self, capability: Capability) -> Self {
        self.evidence =
            self.evidence.map(|Exhibit { evidence, here }| Exhibit { evidence, here: here.on(&capability) });
        self.capability = capability;
        self.set_switches();
        self
    }

    fn set_switches(&mut self) {
        let state = |switch| {
            let declared = self.policy.as_ref().and_then(|policy| policy.switch(switch)).cloned();
            SwitchState::of(switch, declared, self.profile, self.evidence.as_ref())
        };
        self.switches = Switch::NAMES.iter().map(|(_, switch)| state(*switch)).collect();
    }

    /// The phase of a prompt of `n_prompt` tokens, whatever pieces it is read in.
    pub fn prefill(&self, n_prompt: u32) -> Phase {
        match u64::from(n_prompt) <= self.limits.short_prefill_max_tokens.value {
            true => Phase::ShortPrefill,
            false => Phase::LongPrefill,
        }
    }

    /// Decides.
    pub fn resolve(&self, inputs: &Inputs) -> Decision {
        let plan = self.plan(inputs.phase);
        let dense_mask_bytes = inputs.dense_mask_bytes();
        let decision = |selected, rejected, reason| Decision {
            phase: inputs.phase,
            recommended: plan.recommended,
            selected,
            rejected,
            reason,
            refused: false,
            dense_mask_bytes,
            dense_mask_avoided_bytes: match selected {
                Path::Dense => 0,
                _ if self.covers(inputs) => 0,
                _ => dense_mask_bytes,
            },
        };
        if self.lacks_list(inputs) {
            let refused = decision(Path::Fallback, None, Reason::IndexshareStateMissing);
            return Decision { refused: true, dense_mask_avoided_bytes: 0, ..refused };
        }
        let mut rejected = None;
        let mut taken = Candidate { path: Path::Fallback, source: Source::Correctness };
        self.walk(inputs, |candidate, verdict| match verdict {
            Ok(()) => {
                taken = candidate;
                ControlFlow::Break(())
            }
            Err(reason) => {
                rejected.get_or_insert((candidate.path, reason));
                ControlFlow::Continue(())
            }
        });
        match rejected {
            Some((path, reason)) => decision(taken.path, Some(path), reason),
            None => decision(taken.path, None, self.reason_for(taken, inputs)),
        }
    }

    /// Why a candidate is taken before which nothing was rejected.
    fn reason_for(&self, candidate: Candidate, inputs: &Inputs) -> Reason {
        match candidate.source {
            Source::Request | Source::Configuration => Reason::Override,
            _ if candidate.path == Path::Dense && self.has_indexer && self.covers(inputs) => Reason::TopKCoversKv,
            Source::Package => Reason::Recommended,
            Source::BuiltIn => Reason::BuiltInDefault,
            Source::Auto => Reason::Auto,
            Source::Correctness => self.plan(inputs.phase).unknown.unwrap_or(Reason::BuiltInDefault),
        }
    }

    /// Shows every candidate in order with its verdict, until `visit` breaks. The last one is always accepted.
    fn walk(&self, inputs: &Inputs, mut visit: impl FnMut(Candidate, Result<(), Reason>) -> ControlFlow<()>) {
        let plan = self.plan(inputs.phase);
        let named = |path: Option<Path>, source| path.map(|path| Candidate { path, source });
        let first = [
            named(inputs.path, Source::Request),
            named(self.overrides.of(inputs.phase), Source::Configuration),
            plan.asked.map(|(path, source)| Candidate { path, source }),
        ];
        let rest: &[Path] = match plan.unknown {
            Some(_) => &[Path::Fallback],
            None => self.alternatives(inputs.phase),
        };
        let rest = rest.iter().map(|path| Candidate { path: *path, source: plan.rest });
        let mut seen = PathSet::default();
        for candidate in first.into_iter().flatten().chain(rest) {
            // A path that was rejected for who asked first is no better for who asks next: overrides bear more.
            if seen.insert(candidate.path) && visit(candidate, self.judge(candidate, inputs)).is_break() {
                return;
            }
        }
    }

    /// What the runtime tries by itself, best first: for `auto`, and when the path asked for cannot be taken.
    ///
    /// Direct-sparse comes first for few rows where the choice is the runtime's and the backend can attend to rows where
    /// they lie: then nothing is gained by gathering them. In place of a path that was asked for it is not taken, nor for
    /// prompts, where it is what sparse-chunked does without its bounds.
    fn alternatives(&self, phase: Phase) -> &'static [Path] {
        let is_own_choice = self.plan(phase).asked.is_none();
        let in_place = is_own_choice && self.capability.has(Path::DirectSparse);
        match phase {
            Phase::Decode | Phase::Verify if in_place => {
                &[Path::DirectSparse, Path::CompactFlash, Path::Dense, Path::SparseChunked, Path::Fallback]
            }
            Phase::Decode | Phase::Verify => &[Path::CompactFlash, Path::Dense, Path::SparseChunked, Path::Fallback],
            Phase::ShortPrefill => &[Path::Dense, Path::SparseChunked, Path::CompactFlash, Path::Fallback],
            Phase::LongPrefill => &[Path::SparseChunked, Path::CompactFlash, Path::Dense, Path::Fallback],
        }
    }

    /// Whether the candidate can be taken.
    ///
    /// An override goes beyond what is merely not worth while, but not beyond what the model or the backend cannot do, nor
    /// beyond the mask budget, which guards memory.
    fn judge(&self, Candidate { path, source }: Candidate, inputs: &Inputs) -> Result<(), Reason> {
        let forced = matches!(source, Source::Request | Source::Configuration);
        let covers = self.covers(inputs);
        if path.is_sparse() && !self.has_indexer {
            return Err(Reason::NoIndexer);
        }
        if !self.capability.has(path) {
            return Err(Reason::BackendUnsupported);
        }
        if path.is_sparse() && covers && !forced && self.capability.has(Path::Dense) {
            return Err(Reason::TopKCoversKv);
        }
        if path == Path::CompactFlash && !forced && u64::from(inputs.n_kv) < self.limits.compact_flash_min_kv.value {
            return Err(Reason::BelowCompactFlashMinKv);
        }
        if path == Path::Dense && !covers && inputs.dense_mask_bytes() > self.limits.dense_mask_max_bytes.value {
            return Err(Reason::DenseMaskOverBudget);
        }
        Ok(())
    }

    /// Whether every visible row is attended to anyway, so that dense needs no mask.
    fn covers(&self, inputs: &Inputs) -> bool {
        !self.has_indexer || self.top_k.is_some_and(|top_k| top_k >= inputs.n_kv)
    }

    /// Whether the stage starts on a shared layer whose list is not there. `indexshare` has one value, `required`, which is
    /// also the default, and a value that is not known is not taken for leave to go on.
    fn lacks_list(&self, inputs: &Inputs) -> bool {
        self.has_indexer && !inputs.has_list && self.role() == Role::Shared
    }

    fn plan(&self, phase: Phase) -> &PhasePlan {
        let [decode, short_prefill, long_prefill, verify] = &self.plans;
        match phase {
            Phase::Decode => decode,
            Phase::ShortPrefill => short_prefill,
            Phase::LongPrefill => long_prefill,
            Phase::Verify => verify,
        }
    }

    /// The profile, as a label.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Where the stage's first layer gets its lists.
    pub fn role(&self) -> Role {
        self.roles.first().copied().unwrap_or(Role::Full)
    }

    /// KV rows that the indexer selects.
    pub fn top_k(&self) -> Option<u32> {
        self.top_k
    }

    /// What the backend can do.
    pub fn capability(&self) -> &Capability {
        &self.capability
    }

    /// The thresholds that hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The value of a threshold.
    pub fn limit(&self, threshold: Threshold) -> Limit {
        match threshold {
            Threshold::ShortPrefillMaxTokens => self.limits.short_prefill_max_tokens,
            Threshold::CompactFlashMinKv => self.limits.compact_flash_min_kv,
            Threshold::DenseMaskMaxBytes => self.limits.dense_mask_max_bytes,
        }
    }

    /// Every experimental switch.
    pub fn switches(&self) -> &[SwitchState] {
        &self.switches
    }

    /// Whether `switch` is open.
    pub fn is_open(&self, switch: Switch) -> bool {
        self.switches.iter().any(|state| state.switch == switch && state.open)
    }

    /// The evidence that switches are held against, if there is any.
    pub fn evidence(&self) -> Option<&Exhibit> {
        self.evidence.as_ref()
    }
}

/// A path that somebody would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    path: Path,
    source: Source,
}
