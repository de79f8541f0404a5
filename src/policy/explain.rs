//! A decision with everything that led to it, for people and for programs.

use std::{fmt, ops::ControlFlow};

use serde::Serialize;

use super::{
    Candidate, Inputs, Path, PathSet, Phase, Profile, Reason, Recommended, Resolver, Role, Source, SwitchState,
    Threshold,
    capability::Backend,
    plan::Limits,
    types::{Decision, closed},
};
use crate::package::generation::Vocabulary as _;

closed! {
    /// What became of a candidate.
    Verdict {
        /// It is taken.
        Selected => "selected",
        /// It cannot be taken.
        Rejected => "rejected",
        /// It could be taken; one before it is.
        NotNeeded => "not_needed",
        /// Nobody asked for it, and it is taken only if somebody does.
        OnRequest => "on_request",
    }
}

/// One path, weighed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateReport {
    /// The path.
    pub path: Path,
    /// Who named it; nobody for [`Verdict::OnRequest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What became of it.
    pub verdict: Verdict,
    /// Why it is taken or cannot be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The same in words.
    pub words: String,
}

/// A decision, its inputs, and every candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Phase.
    pub phase: Phase,
    /// Rows of the pass.
    pub n_tokens: u32,
    /// KV rows that the last of them sees.
    pub n_kv: u32,
    /// KV rows that the indexer selects; null when there is no indexer or nothing is known about it.
    pub top_k: Option<u32>,
    /// `general.architecture`.
    pub architecture: String,
    /// Backend.
    pub backend: Backend,
    /// The package's profile.
    pub profile: Profile,
    /// Where the stage's first layer gets its lists.
    pub indexshare_role: Role,
    /// Path that the request forces.
    pub request_override: Option<Path>,
    /// Path that command line, environment or configuration force.
    pub configured_override: Option<Path>,
    /// What the package asks for.
    pub recommended: Recommended,
    /// The path taken.
    pub selected: Path,
    /// The first path that was asked for and is not taken.
    pub rejected: Option<Path>,
    /// Why.
    pub reason: Reason,
    /// Whether somebody asked for something else than what is done.
    pub departs: bool,
    /// Whether the stage refuses to run these rows.
    pub refused: bool,
    /// The thresholds that hold.
    pub thresholds: Limits,
    /// The one that the decision hangs on.
    pub selected_threshold: Option<Threshold>,
    /// What a dense mask would take, bytes.
    pub dense_mask_bytes: u64,
    /// What of it is not allocated, bytes.
    pub dense_mask_avoided_bytes: u64,
    /// Every path, in the order in which they are weighed.
    pub candidates: Vec<CandidateReport>,
    /// Experimental switches, and why they are closed.
    pub switches: Vec<SwitchState>,
    /// The decision in one sentence.
    pub words: String,
}

impl Resolver {
    /// What [`resolve`](Self::resolve) decides, and how it comes to that.
    pub fn explain(&self, inputs: &Inputs) -> Explanation {
        let decision = self.resolve(inputs);
        let candidates = self.candidates(inputs, &decision);
        Explanation {
            phase: inputs.phase,
            n_tokens: inputs.n_tokens,
            n_kv: inputs.n_kv,
            top_k: self.top_k,
            architecture: self.architecture.clone(),
            backend: self.capability.backend,
            profile: self.profile,
            indexshare_role: self.role(),
            request_override: inputs.path,
            configured_override: self.overrides.of(inputs.phase),
            recommended: decision.recommended,
            selected: decision.selected,
            rejected: decision.rejected,
            reason: decision.reason,
            departs: decision.departs(),
            refused: decision.refused,
            thresholds: self.limits,
            selected_threshold: decision.threshold(),
            dense_mask_bytes: decision.dense_mask_bytes,
            dense_mask_avoided_bytes: decision.dense_mask_avoided_bytes,
            switches: self.switches.clone(),
            words: self.summary(inputs, &decision, &candidates),
            candidates,
        }
    }

    fn candidates(&self, inputs: &Inputs, decision: &Decision) -> Vec<CandidateReport> {
        let mut reports = Vec::with_capacity(Path::ALL.len());
        let mut seen = PathSet::default();
        let mut open = !decision.refused;
        let mut report = |candidate: Candidate, source, verdict, reason: Option<Reason>| {
            let words = match (reason, verdict) {
                (Some(reason), _) => self.why(candidate, reason, inputs),
                (None, Verdict::Selected) => "it is the next best that gives the right result".to_owned(),
                (None, Verdict::NotNeeded) => "could be taken, were the ones before it not there".to_owned(),
                (None, _) => "is taken only when a request, the command line or the package names it".to_owned(),
            };
            reports.push(CandidateReport { path: candidate.path, source, verdict, reason, words });
        };
        self.walk(inputs, |candidate, verdict| {
            seen.insert(candidate.path);
            let source = Some(candidate.source);
            match verdict {
                _ if decision.refused => {
                    report(candidate, source, Verdict::Rejected, Some(Reason::IndexshareStateMissing));
                }
                Err(reason) => report(candidate, source, Verdict::Rejected, Some(reason)),
                Ok(()) if open => {
                    // The decision's own reason may be that of an earlier rejection; this is why this one comes next.
                    let reason = self.reason_for(candidate, inputs);
                    let next_best = candidate.source == Source::Correctness && reason == Reason::BuiltInDefault;
                    report(candidate, source, Verdict::Selected, (!next_best).then_some(reason));
                    open = false;
                }
                Ok(()) => report(candidate, source, Verdict::NotNeeded, None),
            }
            ControlFlow::Continue(())
        });
        for path in Path::ALL.iter().copied().filter(|path| !seen.contains(*path)) {
            let candidate = Candidate { path, source: Source::Request };
            let verdict = match decision.refused {
                true => Err(Reason::IndexshareStateMissing),
                false => self.judge(candidate, inputs),
            };
            match verdict {
                Err(reason) => report(candidate, None, Verdict::Rejected, Some(reason)),
                Ok(()) => report(candidate, None, Verdict::OnRequest, None),
            }
        }
        reports
    }

    /// Why `candidate` is taken or cannot be.
    fn why(&self, candidate: Candidate, reason: Reason, inputs: &Inputs) -> String {
        let Inputs { phase, n_kv, .. } = *inputs;
        match reason {
            Reason::Recommended => "the package recommends it".to_owned(),
            Reason::Auto => {
                let choice = "the package leaves the choice to the runtime";
                format!("{choice}, for which it comes first here: {}", self.merit(candidate.path))
            }
            Reason::Override if candidate.source == Source::Request => "the request forces it".to_owned(),
            Reason::Override => "the configuration forces it".to_owned(),
            Reason::BuiltInDefault => {
                format!("the package says nothing about {phase}, and this is the default for `{}`", self.architecture)
            }
            Reason::UnknownProfile | Reason::UnknownValue => {
                let field = match reason {
                    Reason::UnknownProfile => "generation.policy.profile".to_owned(),
                    _ => format!("generation.policy.{phase}"),
                };
                let value = self.unsupported.iter().find(|found| found.field == field);
                let value = value.map_or(String::new(), |found| format!(" {}", found.value));
                format!("`{field}`{value} is not known to this version, so only the named fallback may serve it")
            }
            Reason::BackendUnsupported => format!("{} does not have it", self.capability.backend),
            Reason::NoIndexer => {
                format!("`{}` has no indexer, so there are no selected rows to attend to", self.architecture)
            }
            Reason::BelowCompactFlashMinKv => {
                let min = self.limits.compact_flash_min_kv.value;
                format!("{n_kv} KV rows are fewer than compact_flash_min_kv = {min}")
            }
            Reason::DenseMaskOverBudget => {
                let (needed, max) = (inputs.dense_mask_bytes(), self.limits.dense_mask_max_bytes.value);
                format!("its mask would take {needed} bytes, more than dense_mask_max_bytes = {max}")
            }
            Reason::TopKCoversKv => {
                let top_k = self.top_k.unwrap_or(0);
                format!("top-k {top_k} covers all {n_kv} visible KV rows: dense is exact, and nothing has to be scored")
            }
            Reason::IndexshareStateMissing => {
                "the stage starts on a shared layer, and the top-k lists of the layer before it are not there"
                    .to_owned()
            }
            Reason::EvidenceMissing
            | Reason::EvidenceEdited
            | Reason::EvidenceForeignBuild
            | Reason::EvidenceForeignCpu
            | Reason::EvidenceNoWin
            | Reason::ParityFailed => reason.label().to_owned(),
        }
    }

    /// What speaks for a path that the runtime chooses by itself.
    fn merit(&self, path: Path) -> String {
        match path {
            Path::DirectSparse => {
                format!(
                    "on {} the selected rows are attended to where they lie, and nothing is gathered",
                    self.capability.backend
                )
            }
            Path::CompactFlash if self.capability.has(Path::DirectSparse) => {
                "only the selected rows are attended to".to_owned()
            }
            Path::CompactFlash => {
                format!(
                    "{} cannot attend to the selected rows where they lie, so they are gathered",
                    self.capability.backend
                )
            }
            Path::SparseChunked => "its buffers stay bounded however long the text, without a mask".to_owned(),
            Path::Dense => "for few tokens the selection costs more than it saves".to_owned(),
            Path::Fallback => "it is always right".to_owned(),
        }
    }

    fn summary(&self, inputs: &Inputs, decision: &Decision, candidates: &[CandidateReport]) -> String {
        let asks = match decision.recommended {
            Recommended::None => "the package says nothing".to_owned(),
            Recommended::Auto => "the package says `auto`".to_owned(),
            Recommended::Unknown => "the package asks for something unknown".to_owned(),
            path => format!("the package asks for {path}"),
        };
        if decision.refused {
            let none = Candidate { path: decision.selected, source: Source::Correctness };
            return format!("refused: {}", self.why(none, decision.reason, inputs));
        }
        let taken = candidates.iter().find(|candidate| candidate.verdict == Verdict::Selected);
        let taken = taken.map(|candidate| candidate.words.as_str()).unwrap_or_default();
        let first = candidates.iter().find(|candidate| Some(candidate.path) == decision.rejected);
        match first {
            Some(first) => {
                format!("{asks}; {} is not taken since {}; {} is taken", first.path, first.words, decision.selected)
            }
            None => format!("{asks}; {} is taken since {taken}", decision.selected),
        }
    }
}

/// Several lines for a terminal.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, n_tokens, n_kv, selected, backend, architecture, .. } = self;
        let rows = if *n_tokens == 1 { "row" } else { "rows" };
        writeln!(f, "{phase} of {n_tokens} {rows} over {n_kv} KV rows, {architecture} on {backend}: {selected}")?;
        writeln!(f, "  {}", self.words)?;
        writeln!(f, "candidates, in order")?;
        for candidate in &self.candidates {
            let CandidateReport { path, source, verdict, words, .. } = candidate;
            let source = source.map_or("-", Source::label);
            writeln!(f, "  {:<14} {source:<13} {:<10}  {words}", path.label(), verdict.label())?;
        }
        writeln!(f, "inputs")?;
        let or_none = |path: Option<Path>| path.map_or("none", Path::label);
        writeln!(f, "  profile {}, recommended {}", self.profile, self.recommended)?;
        let (request, configured) = (or_none(self.request_override), or_none(self.configured_override));
        writeln!(f, "  override by request {request}, by configuration {configured}")?;
        let top_k = self.top_k.map_or("none".to_owned(), |top_k| top_k.to_string());
        writeln!(f, "  top-k {top_k}, first layer {}", self.indexshare_role)?;
        let Limits { short_prefill_max_tokens, compact_flash_min_kv, dense_mask_max_bytes } = self.thresholds;
        for (threshold, limit) in [
            (Threshold::ShortPrefillMaxTokens, short_prefill_max_tokens),
            (Threshold::CompactFlashMinKv, compact_flash_min_kv),
            (Threshold::DenseMaskMaxBytes, dense_mask_max_bytes),
        ] {
            writeln!(f, "  {threshold} {} ({})", limit.value, limit.from)?;
        }
        writeln!(f, "  dense mask {} bytes, avoided {}", self.dense_mask_bytes, self.dense_mask_avoided_bytes)?;
        let mut declared = self.switches.iter().filter(|state| state.declared.is_some()).peekable();
        if declared.peek().is_some() {
            writeln!(f, "experimental switches")?;
        }
        declared.try_for_each(|state| {
            let open = if state.open { "open" } else { "closed" };
            let reason = state.reason.map_or(String::new(), |reason| format!(": {reason}"));
            writeln!(f, "  {} {open}{reason}", state.switch.name())
        })
    }
}
