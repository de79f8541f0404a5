//! From what operators ask for and a package declares to the strategy that holds (spec, Speculative Decoding).

use std::fmt;

use serde::Serialize;

use crate::package::generation::{DefaultStrategy, SpeculativeDecoding, Strategy, StrategyKind};

/// Characters of a foreign name in a message.
const MAX_SHOWN: usize = 80;

/// What operators ask for, level by level; the first that says something wins. Each value is `auto`, `disabled`, `mtp`,
/// `native-mtp-n1` (the old name of `mtp`) or the id of a strategy that the package declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Command line, or its environment variable.
    pub command_line: Option<String>,
    /// The entry of the model that is served.
    pub model: Option<String>,
    /// For every model.
    pub global: Option<String>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Command line, or its environment variable.
    CommandLine,
    /// The entry of the model that is served.
    Model,
    /// The setting for every model.
    Global,
    /// The package: nobody else said anything but `auto`.
    Package,
    /// Nobody said anything.
    Default,
}

/// How a server speculates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Speculation {
    /// Id of the strategy; `disabled` when there is none.
    pub strategy: String,
    /// What proposes.
    #[serde(flatten)]
    pub kind: SpeculationKind,
    /// Who decided.
    pub source: Level,
    /// Why the package's own default is not served, when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// What proposes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum SpeculationKind {
    /// Nothing.
    Disabled,
    /// The model's MTP block.
    NativeMtp {
        /// Tokens proposed at once: 1.
        depth: u32,
    },
}

/// What there is to draft with, known once the artifacts are open and the engine is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftHead<'a> {
    /// Layers with NextN tensors.
    pub nextn_layers: &'a [u32],
    /// Whether the engine can draft with them.
    pub engine: bool,
}

/// A strategy that the package allows, before it is known what there is to draft with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyPlan {
    speculation: Speculation,
    /// Layers that the package names for the strategy; empty when it names none.
    layers: Vec<u32>,
    /// The package's own recommendation: what stands in its way disables it instead of failing.
    by_default: bool,
}

/// Why a strategy that was asked for cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StrategyError {
    /// The package does not declare it.
    #[error("`speculative-strategy` {name} ({level}): not declared by the package, expected {expected}")]
    Undeclared {
        /// The name asked for, quoted.
        name: String,
        /// Who asked.
        level: Level,
        /// What there is.
        expected: String,
    },
    /// The package declares it, this version cannot do it.
    #[error(
        "`speculative-strategy` {name} ({level}): strategies of type {kind} are not supported by this version, expected \
         `auto`, `mtp`, `disabled` or a declared strategy of type `native-mtp`"
    )]
    Unsupported {
        /// The name asked for, quoted.
        name: String,
        /// Who asked.
        level: Level,
        /// Its type, quoted.
        kind: String,
    },
    /// The model has no MTP block.
    #[error(
        "`speculative-strategy` {name} ({level}): the package has no NextN (MTP) tensors to draft with; use `auto` or \
         `disabled`"
    )]
    NoNextn {
        /// The name asked for, quoted.
        name: String,
        /// Who asked.
        level: Level,
    },
    /// The package says that the MTP block is somewhere else.
    #[error(
        "`speculative-strategy` {name} ({level}): the package names layers {declared:?} for it, NextN tensors are in \
         {found:?}; repair `layer_indices`, or use `mtp`"
    )]
    Layers {
        /// The name asked for, quoted.
        name: String,
        /// Who asked.
        level: Level,
        /// Layers that the package names.
        declared: Vec<u32>,
        /// Layers with NextN tensors.
        found: Vec<u32>,
    },
    /// The engine does not use the MTP block.
    #[error(
        "`speculative-strategy` {name} ({level}): the engine that serves this model cannot draft with its NextN (MTP) \
         tensors; use `auto` or `disabled`"
    )]
    NoDraftHead {
        /// The name asked for, quoted.
        name: String,
        /// Who asked.
        level: Level,
    },
}

/// Looks up what operators ask for in what the package declares.
///
/// `auto` (or nothing) means the package's recommendation, and no speculation when it recommends none. A recommendation that
/// cannot be served is not an error: it counts as `disabled`, and [`Speculation::notice`] says why.
///
/// # Errors
/// [`StrategyError::Undeclared`] and [`StrategyError::Unsupported`], for what an operator asked for by name.
pub fn plan(requested: &Requested, declared: Option<&SpeculativeDecoding>) -> Result<StrategyPlan, StrategyError> {
    let (name, level) = requested.winner();
    match name {
        "auto" => Ok(recommended(declared, level)),
        "disabled" => Ok(StrategyPlan::disabled(level, None)),
        "mtp" | "native-mtp-n1" => Ok(StrategyPlan::native_mtp("mtp", level, Vec::new(), false)),
        _ => match declared.and_then(|declared| Some((declared, declared.strategies.get(name)?))) {
            Some((declared, strategy)) => match &strategy.kind {
                StrategyKind::NativeMtp(_) => {
                    Ok(StrategyPlan::native_mtp(name, level, layers_of(declared, strategy), false))
                }
                other => Err(StrategyError::Unsupported { name: quoted(name), level, kind: quoted(other.name()) }),
            },
            None => Err(StrategyError::Undeclared { name: quoted(name), level, expected: expected(declared) }),
        },
    }
}

/// The package's own recommendation.
fn recommended(declared: Option<&SpeculativeDecoding>, asked: Level) -> StrategyPlan {
    let Some((declared, default)) = declared.and_then(|declared| Some((declared, declared.default_strategy()?))) else {
        return StrategyPlan::disabled(asked, None);
    };
    match default {
        DefaultStrategy::Unsupported(unsupported) => {
            StrategyPlan::disabled(Level::Package, Some(unsupported.to_string()))
        }
        DefaultStrategy::Supported(id, strategy) => match &strategy.kind {
            StrategyKind::NativeMtp(_) => {
                StrategyPlan::native_mtp(id, Level::Package, layers_of(declared, strategy), true)
            }
            other => {
                let kind = quoted(other.name());
                let error = StrategyError::Unsupported { name: quoted(id), level: Level::Package, kind };
                StrategyPlan::disabled(Level::Package, Some(error.to_string()))
            }
        },
    }
}

/// The layers that a native MTP strategy names, itself or through its proposer.
fn layers_of(declared: &SpeculativeDecoding, strategy: &Strategy) -> Vec<u32> {
    let StrategyKind::NativeMtp(mtp) = &strategy.kind else { return Vec::new() };
    let proposer = || Some(declared.native_mtp(mtp.proposer.as_deref()?)?.layer_indices.clone());
    mtp.layer_indices.clone().or_else(proposer).unwrap_or_default()
}

fn expected(declared: Option<&SpeculativeDecoding>) -> String {
    let names = declared.map(|declared| declared.strategies.keys().take(8).map(|id| quoted(id)).collect::<Vec<_>>());
    match names.filter(|names| !names.is_empty()) {
        Some(names) => format!("`auto`, `disabled`, `mtp` or one of {}", names.join(", ")),
        None => "`auto`, `disabled` or `mtp`: it declares none".into(),
    }
}

fn quoted(name: &str) -> String {
    let short: String = name.chars().take(MAX_SHOWN).collect();
    format!("`{}{}`", short.escape_debug(), if short.len() < name.len() { "..." } else { "" })
}

impl Requested {
    /// The value that holds and who set it; `auto` when nobody did.
    fn winner(&self) -> (&str, Level) {
        let levels =
            [(&self.command_line, Level::CommandLine), (&self.model, Level::Model), (&self.global, Level::Global)];
        let mut set = levels.into_iter().filter_map(|(value, level)| Some((value.as_deref()?, level)));
        set.next().unwrap_or(("auto", Level::Default))
    }
}

impl StrategyPlan {
    fn disabled(source: Level, notice: Option<String>) -> Self {
        let speculation = Speculation { source, notice, ..Speculation::disabled() };
        Self { speculation, layers: Vec::new(), by_default: false }
    }

    fn native_mtp(id: &str, source: Level, layers: Vec<u32>, by_default: bool) -> Self {
        let kind = SpeculationKind::NativeMtp { depth: 1 };
        let speculation = Speculation { strategy: id.into(), kind, source, notice: None };
        Self { speculation, layers, by_default }
    }

    /// Rows of one request in a pass past its prompt: the chosen token, and drafts behind it.
    pub fn window(&self) -> u32 {
        self.speculation.kind.window()
    }

    /// Holds the plan against what there is to draft with.
    ///
    /// # Errors
    /// [`StrategyError::NoNextn`], [`StrategyError::Layers`] and [`StrategyError::NoDraftHead`], for what an operator
    /// asked for.
    pub fn fit(self, head: DraftHead<'_>) -> Result<Speculation, StrategyError> {
        let Some(error) = self.obstacle(head) else { return Ok(self.speculation) };
        match self.by_default {
            true => Ok(Self::disabled(self.speculation.source, Some(error.to_string())).speculation),
            false => Err(error),
        }
    }

    fn obstacle(&self, head: DraftHead<'_>) -> Option<StrategyError> {
        if self.speculation.kind == SpeculationKind::Disabled {
            return None;
        }
        let (name, level) = (quoted(&self.speculation.strategy), self.speculation.source);
        if head.nextn_layers.is_empty() {
            return Some(StrategyError::NoNextn { name, level });
        }
        if self.layers.iter().any(|layer| !head.nextn_layers.contains(layer)) {
            let (declared, found) = (self.layers.clone(), head.nextn_layers.to_vec());
            return Some(StrategyError::Layers { name, level, declared, found });
        }
        (!head.engine).then_some(StrategyError::NoDraftHead { name, level })
    }
}

impl Speculation {
    /// No speculation, and nobody asked for any.
    pub fn disabled() -> Self {
        Self { strategy: "disabled".into(), kind: SpeculationKind::Disabled, source: Level::Default, notice: None }
    }

    /// The direct use of the model's MTP block.
    pub fn native_mtp() -> Self {
        StrategyPlan::native_mtp("mtp", Level::CommandLine, Vec::new(), false).speculation
    }

    /// Whether anything proposes.
    pub fn is_enabled(&self) -> bool {
        self.kind != SpeculationKind::Disabled
    }
}

impl Default for Speculation {
    fn default() -> Self {
        Self::disabled()
    }
}

impl SpeculationKind {
    /// Rows of one request in a pass past its prompt: the chosen token, and drafts behind it.
    pub fn window(self) -> u32 {
        match self {
            Self::Disabled => 1,
            Self::NativeMtp { depth } => 1 + depth,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CommandLine => "from the command line",
            Self::Model => "from the model entry",
            Self::Global => "from the global settings",
            Self::Package => "the package's default",
            Self::Default => "by default",
        })
    }
}

#[cfg(test)]
#[path = "strategy_tests.rs"]
mod tests;
