//! `plan`.

mod memory;
mod show;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, path::PathBuf, process::ExitCode};

use clap::ValueEnum;

use super::{UsageError, print, print_json};
use crate::{
    gguf::GgmlType,
    package::{
        Package,
        glm_dsa::Config,
        plan::{Costs, PlanEngine, PlanError, PlannedStage, Sizing, plan},
    },
    policy::Role,
    stage::families::{CutError, check_cut, check_trunk_cut},
};

/// Split a package into stages that fit their machines, at cuts that the model family allows, and print the commands that
/// start them.
///
/// A stage holds weights, KV rows for every lane, and compute buffers; the last are an estimate. Exit code 1 when nothing
/// fits.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The package directory.
    package: PathBuf,
    /// Number of stages; one for each value of `--memory` by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), required_unless_present = "memory")]
    stages: Option<u32>,
    /// Memory that each stage may fill, first stage first, or one value for all: 24GiB,48GiB.
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', value_parser = memory::parse)]
    memory: Vec<u64>,
    /// Tokens of one request; the model's own length up to 4096 by default.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    ctx_size: Option<u32>,
    /// Requests that run together [default: 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    lanes: Option<u32>,
    /// Tokens of a prompt that are read in one step [default: 512].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Type of the K cache [default: f16].
    #[arg(long, value_enum)]
    cache_type_k: Option<CacheType>,
    /// Type of the V cache [default: f16].
    #[arg(long, value_enum)]
    cache_type_v: Option<CacheType>,
    /// What will run the layers: its cut rules and its memory count.
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    engine: Engine,
    /// Cut also where the model family is not certified.
    #[arg(long)]
    allow_uncertified_cuts: bool,
    /// Print the plan as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheType {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// `dsa` for the GLM-DSA architectures, else `llama`.
    Auto,
    Llama,
    Dsa,
}

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    pub(super) stages: u32,
    pub(super) memory: Vec<u64>,
    pub(super) sizing: Sizing,
    pub(super) uncertified: bool,
}

/// A plan, and what it rests on.
pub(super) struct Plan {
    pub(super) stages: Vec<PlannedStage>,
    engine: PlanEngine,
    ctx_size: u64,
    /// Bytes of a hidden row.
    row_bytes: u64,
    notes: Vec<String>,
}

impl From<CacheType> for GgmlType {
    fn from(ty: CacheType) -> Self {
        match ty {
            CacheType::F32 => Self::F32,
            CacheType::F16 => Self::F16,
            CacheType::Q8_0 => Self::Q8_0,
        }
    }
}

impl Args {
    fn wish(&self) -> Wish {
        let sizing = Sizing::default();
        Wish {
            stages: self.stages.unwrap_or_else(|| u32::try_from(self.memory.len()).unwrap_or(u32::MAX)),
            memory: self.memory.clone(),
            sizing: Sizing {
                engine: match self.engine {
                    Engine::Auto => None,
                    Engine::Llama => Some(PlanEngine::Llama),
                    Engine::Dsa => Some(PlanEngine::Dsa),
                },
                ctx_size: self.ctx_size,
                lanes: self.lanes.unwrap_or(sizing.lanes),
                batch_size: self.batch_size.unwrap_or(sizing.batch_size),
                cache_type_k: self.cache_type_k.map_or(sizing.cache_type_k, GgmlType::from),
                cache_type_v: self.cache_type_v.map_or(sizing.cache_type_v, GgmlType::from),
            },
            uncertified: self.allow_uncertified_cuts,
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let package = Package::open(&args.package)?;
    let wish = args.wish();
    let plan = plan_package(&package, &wish)?;
    if args.json {
        print_json(&show::json(args, &package, &wish, &plan))?;
    } else {
        print(&show::text(args, &plan))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan for a package.
///
/// # Errors
/// When a shared artifact is refused, the engine does not serve the model, or, as a [`PlanError`], when there is no plan.
pub(super) fn plan_package(package: &Package, wish: &Wish) -> anyhow::Result<Plan> {
    let (costs, metadata) = Costs::of(package, &wish.sizing)?;
    let layer_count = package.manifest().layer_count;
    let engine = wish.sizing.engine(&metadata);
    let config = Config::read(&metadata, layer_count);
    if let (PlanEngine::Dsa, Some(PlanEngine::Dsa), Err(error)) = (engine, wish.sizing.engine, &config) {
        anyhow::bail!("the dsa engine cannot run this package: {error}");
    }
    let refused = RefCell::new(None::<CutError>);
    let cut = |cut| {
        let (checked, sideband) = match (engine, &config) {
            (PlanEngine::Dsa, Ok(config)) => {
                let shared = config.role(cut) == Some(Role::Shared);
                let sideband = if shared { config.sideband_bytes_per_token() } else { 0 };
                (check_trunk_cut(&metadata, layer_count, cut), sideband)
            }
            _ => (check_cut(&metadata, layer_count, cut, wish.uncertified), 0),
        };
        match checked {
            Ok(()) => Some(sideband),
            Err(error) => {
                refused.borrow_mut().get_or_insert(error);
                None
            }
        }
    };
    let stages = plan(&costs, wish.stages, &wish.memory, cut).map_err(|error| match (error, refused.take()) {
        (PlanError::TooMany { stages, layer_count, allowed, .. }, Some(cut)) => {
            PlanError::TooMany { stages, layer_count, allowed, why: format!(" ({cut})") }
        }
        (error, _) => error,
    });
    let stages = stages.map_err(|error| match error {
        PlanError::Machines { .. } => anyhow::Error::new(UsageError(error.to_string())),
        error => error.into(),
    })?;
    let row_bytes = metadata.arch_uint("embedding_length").unwrap_or(0).saturating_mul(4);
    Ok(Plan { stages, engine, ctx_size: wish.sizing.ctx_size(&metadata), row_bytes, notes: costs.notes })
}
