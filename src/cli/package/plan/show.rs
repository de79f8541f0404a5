//! A plan for people, for programs, and as commands.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::{super::size, Args, CacheType, Engine, Plan, Wish};
use crate::package::{
    Package,
    plan::{PlanEngine, PlannedStage},
};

/// Port of links in the commands.
const PORT: u16 = 19000;

/// The table, what was estimated, and the commands.
pub(super) fn text(args: &Args, plan: &Plan) -> String {
    let with_memory = !args.memory.is_empty();
    let with_sideband = plan.stages.iter().any(|stage| stage.sideband > 0);
    let mut head = vec!["stage", "layers", "weights", "KV", "compute", "total"];
    head.extend(with_memory.then_some("of memory"));
    head.extend(with_sideband.then_some("sideband/token"));
    let rows = plan.stages.iter().enumerate().map(|(index, stage)| {
        let bytes = stage.bytes;
        let mut row = vec![index.to_string(), stage.layers.to_string()];
        row.extend([bytes.weights, bytes.kv, bytes.compute, bytes.total()].map(size));
        row.extend(stage.memory.map(|memory| format!("{} ({} %)", size(memory), percent(bytes.total(), memory))));
        row.extend(with_sideband.then(|| size(stage.sideband)));
        row
    });
    let mut out = table(&head, &rows.collect::<Vec<_>>());
    for note in &plan.notes {
        let _ = writeln!(out, "note: {}", super::super::one_line(note));
    }
    let (cuts, package) = (cuts(&plan.stages), package(args));
    if !cuts.is_empty() {
        let cuts: Vec<String> = cuts.iter().map(u32::to_string).collect();
        let _ = writeln!(out, "in one process: skippy-stage serve {package} --split {}{}", cuts.join(","), flags(args));
        let _ = writeln!(out, "one machine each, in this order (docs/deploy.md tells of certificates and tokens):");
    }
    for command in commands(args, &plan.stages) {
        let _ = writeln!(out, "  {command}");
    }
    out
}

/// The same facts under stable names; `docs/deploy.md` lists them.
pub(super) fn json(args: &Args, package: &Package, wish: &Wish, plan: &Plan) -> Json {
    let manifest = package.manifest();
    let totals = || plan.stages.iter().map(|stage| stage.bytes.total());
    let shown = plan.stages.iter().enumerate().map(|(index, stage)| {
        let bytes = stage.bytes;
        json!({
            "stage": index,
            "layer_start": stage.layers.start(),
            "layer_end": stage.layers.end(),
            "tensor_bytes": bytes.weights,
            "kv_bytes": bytes.kv,
            "compute_bytes": bytes.compute,
            "total_bytes": bytes.total(),
            "memory_bytes": stage.memory,
            "fill": stage.memory.map(|memory| bytes.total() as f64 / memory.max(1) as f64),
            "hidden_bytes_per_token": if index == 0 { 0 } else { plan.row_bytes },
            "sideband_bytes_per_token": stage.sideband,
        })
    });
    json!({
        "model_id": manifest.model_id,
        "layer_count": manifest.layer_count,
        "engine": match plan.engine { PlanEngine::Llama => "llama", PlanEngine::Dsa => "dsa" },
        "ctx_size": plan.ctx_size,
        "lanes": wish.sizing.lanes,
        "batch_size": wish.sizing.batch_size,
        "cache_type_k": wish.sizing.cache_type_k.name(),
        "cache_type_v": wish.sizing.cache_type_v.name(),
        "cuts": cuts(&plan.stages),
        "heaviest_stage_bytes": totals().max(),
        "stages": shown.collect::<Vec<_>>(),
        "commands": commands(args, &plan.stages),
        "notes": plan.notes,
    })
}

/// The commands that start the stages, in the order in which to start them: each stage finds the next one there.
pub(super) fn commands(args: &Args, stages: &[PlannedStage]) -> Vec<String> {
    let (package, flags) = (package(args), flags(args));
    if stages.len() < 2 {
        return vec![format!("skippy-stage serve {package}{flags}")];
    }
    let command = |(index, stage): (usize, &PlannedStage)| {
        let layers = stage.layers;
        let mut command = match index {
            0 => format!("skippy-stage serve {package} --layers {layers}"),
            _ => format!("skippy-stage stage {package} --layers {layers} --bind 0.0.0.0:{PORT}"),
        };
        let is_last = index + 1 == stages.len();
        if !is_last {
            // Without mutual TLS no link leaves the machine.
            let _ = write!(command, " --next https://{}:{PORT}", host(index + 1));
        }
        command + " --link-ca CA --link-cert CERT --link-key KEY" + &flags
    };
    stages.iter().enumerate().rev().map(command).collect()
}

fn cuts(stages: &[PlannedStage]) -> Vec<u32> {
    stages.iter().skip(1).map(|stage| stage.layers.start()).collect()
}

/// What was asked for and every stage must be told.
fn flags(args: &Args) -> String {
    let mut flags = String::new();
    let numbers = [("ctx-size", args.ctx_size), ("lanes", args.lanes), ("batch-size", args.batch_size)];
    for (name, value) in numbers.iter().filter_map(|(name, value)| Some((name, (*value)?))) {
        let _ = write!(flags, " --{name} {value}");
    }
    let types = [("cache-type-k", args.cache_type_k), ("cache-type-v", args.cache_type_v)];
    for (name, ty) in types.iter().filter_map(|(name, ty)| Some((name, (*ty)?))) {
        let ty = match ty {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8_0 => "q8_0",
        };
        let _ = write!(flags, " --{name} {ty}");
    }
    flags.push_str(match args.engine {
        Engine::Auto => "",
        Engine::Llama => " --engine llama",
        Engine::Dsa => " --engine dsa",
    });
    flags.push_str(if args.allow_uncertified_cuts { " --allow-uncertified-cuts" } else { "" });
    flags
}

/// A name to replace: `HOST-A` for stage 0.
fn host(index: usize) -> String {
    match u8::try_from(index).ok().filter(|index| *index < 26) {
        Some(index) => format!("HOST-{}", char::from(b'A' + index)),
        None => format!("HOST-{index}"),
    }
}

/// The package as a word of a shell.
fn package(args: &Args) -> String {
    let path = args.package.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !path.is_empty() && path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Percent, rounded up: 100 only where nothing is left.
fn percent(part: u64, whole: u64) -> u128 {
    (u128::from(part) * 100).div_ceil(u128::from(whole.max(1)))
}

/// Columns as wide as their widest cell, to the right.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        padded.join("  ") + "\n"
    };
    let mut out = line(&mut head.iter().copied());
    for row in rows {
        out += &line(&mut row.iter().map(String::as_str));
    }
    out
}
