//! `skippy-stage resolve`: which attention path a package takes with given inputs, and why. Reads the manifest and the
//! shared metadata; loads no weights.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{
    cli::machine,
    package::{LayerRange, Package},
    policy::{Evidence, Exhibit, Explanation, Question, Resolver, ResolverConfig},
};

/// Arguments of `resolve`.
#[derive(Args, Clone, Debug)]
pub struct ResolveArgs {
    /// Layer package: a directory with `model-package.json`
    #[arg(long)]
    package: PathBuf,
    /// decode, short_prefill, long_prefill, verify, or prefill: short or long by `--n-tokens`
    #[arg(long)]
    phase: String,
    /// Rows of the pass
    #[arg(long, value_name = "N")]
    n_tokens: u32,
    /// KV rows that the last of them sees, itself included
    #[arg(long, value_name = "N")]
    n_kv: u32,
    /// Path to force, as a request would: dense, direct-sparse, compact-flash, sparse-chunked or fallback
    #[arg(long)]
    path: Option<String>,
    /// Backend: cpu, cuda, metal or vulkan
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// Layers of the stage, as A..B; all by default
    #[arg(long)]
    layers: Option<LayerRange>,
    /// File with measurements of this build on this machine, as `serve --evidence` reads it
    #[arg(long, env = "SKIPPY_EVIDENCE", value_name = "FILE")]
    evidence: Option<PathBuf>,
    /// Print the explanation as JSON
    #[arg(long)]
    json: bool,
}

/// Explains one decision.
///
/// # Errors
/// When the package cannot be read, breaks the contract of its architecture, or an argument makes no sense.
pub fn run(args: &ResolveArgs) -> anyhow::Result<ExitCode> {
    let explanation = explain(args)?;
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&explanation)?),
        false => explanation.to_string(),
    };
    // Whoever reads our output may have seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn explain(args: &ResolveArgs) -> anyhow::Result<Explanation> {
    let package = Package::open(&args.package)?;
    let metadata = package.metadata()?;
    let manifest = package.manifest();
    let layers = match args.layers {
        Some(layers) => layers.within(manifest.layer_count)?,
        None => LayerRange::new(0, manifest.layer_count)?,
    };
    let config = ResolverConfig::of_model(&metadata, manifest.layer_count, layers)?;
    let (generation, capability) = (manifest.generation.as_ref(), machine::capability());
    let threads = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    let evidence = args.evidence.as_deref().map(Evidence::open).transpose()?;
    let evidence = evidence.map(|evidence| Exhibit::here(evidence, &capability, threads)).transpose()?;
    let resolver = Resolver::new(ResolverConfig { generation, capability, evidence, ..config });
    Ok(resolver.answer(&Question {
        phase: &args.phase,
        n_tokens: args.n_tokens,
        n_kv: args.n_kv,
        path: args.path.as_deref(),
        backend: Some(&args.backend),
    })?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::{
        package::{
            generation::Switch,
            glm_dsa::testing,
            testing::{Recipe, TestPackage},
        },
        policy::{
            Origin, Path, Profile, Reason, Role,
            evidence::{Measurement, Shape},
        },
    };

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ResolveArgs,
    }

    /// Layers full, full, shared, shared, full, shared and the MTP block; top-k 24.
    fn package() -> TestPackage {
        let package = Recipe { arch: "glm-dsa", layers: testing::LAYERS, ..Recipe::default() }.write();
        package.replace_fragment("/shared/metadata", &testing::metadata(), &[]);
        package.edit_manifest(|manifest| {
            manifest["generation"] = json!({
                "policy": {"profile": "glm-dsa-v1", "decode": "compact-flash", "short_prefill": "dense"},
                "thresholds": {"short_prefill_max_tokens": 128},
            });
        });
        package
    }

    fn ask(package: &TestPackage, args: &str) -> anyhow::Result<Explanation> {
        let root = package.root().to_str().unwrap();
        let args = ["resolve", "--package", root].into_iter().chain(args.split_whitespace());
        explain(&Cli::try_parse_from(args)?.args)
    }

    #[test]
    fn a_package_is_resolved_by_manifest_and_metadata_alone() {
        let package = package();
        for layer in 0..testing::LAYERS {
            std::fs::remove_file(package.file(&format!("layers/layer-{layer:05}.gguf"))).unwrap();
        }
        let decode = ask(&package, "--phase decode --n-tokens 1 --n-kv 32768").unwrap();
        assert_eq!((decode.selected, decode.reason, decode.top_k), (Path::CompactFlash, Reason::Recommended, Some(24)));
        assert_eq!(decode.architecture, "glm-dsa");
        let covered = ask(&package, "--phase decode --n-tokens 1 --n-kv 24").unwrap();
        assert_eq!((covered.selected, covered.reason), (Path::Dense, Reason::TopKCoversKv));
        let short = ask(&package, "--phase prefill --n-tokens 128 --n-kv 128").unwrap();
        assert_eq!((short.selected, short.reason), (Path::Dense, Reason::Recommended));
        let long = ask(&package, "--phase prefill --n-tokens 129 --n-kv 129").unwrap();
        assert_eq!((long.selected, long.reason), (Path::SparseChunked, Reason::BuiltInDefault));
        let cuda = ask(&package, "--phase decode --n-tokens 1 --n-kv 99 --backend cuda --path direct-sparse").unwrap();
        assert_eq!((cuda.selected, cuda.reason), (Path::CompactFlash, Reason::BackendUnsupported));
        let stage = ask(&package, "--phase decode --n-tokens 1 --n-kv 99 --layers 2..5").unwrap();
        assert_eq!((decode.indexshare_role, stage.indexshare_role), (Role::Full, Role::Shared));
    }

    #[test]
    fn evidence_opens_switches_of_the_package() {
        let package = package();
        package.edit_manifest(|manifest| {
            manifest["generation"]["policy"]["experimental"] = json!({"moe_weighted_down": "evidence-gated"});
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        let ask = || {
            let evidence = file.path().to_str().unwrap();
            ask(&package, &format!("--phase decode --n-tokens 1 --n-kv 99 --evidence {evidence}"))
        };
        assert!(ask().unwrap_err().to_string().contains(file.path().to_str().unwrap()));
        let measurement = Measurement {
            profile: Profile::GlmDsaV1,
            switch: Switch::MoeWeightedDown,
            shape: Shape { n_tokens: 64, n_kv: 64, top_k: 0 },
            parity_error: 0.0,
            tolerance: 1e-5,
            speed_ratio: 1.5,
        };
        let write = |origin| std::fs::write(file.path(), Evidence::seal(vec![measurement.clone()], origin).unwrap());
        let here = Origin::here(&machine::capability(), 1).unwrap();
        write(here.clone()).unwrap();
        let explanation = ask().unwrap();
        assert!(explanation.switches.iter().any(|state| state.switch == Switch::MoeWeightedDown && state.open));
        assert!(explanation.to_string().ends_with("experimental switches\n  moe_weighted_down open\n"));
        write(Origin { isa: "abacus".into(), ..here }).unwrap();
        let text = ask().unwrap().to_string();
        assert!(text.ends_with("  moe_weighted_down closed: evidence_foreign_cpu\n"), "{text}");
    }

    #[test]
    fn other_architectures_attend_densely() {
        let package = Recipe::default().write();
        let explanation = ask(&package, "--phase prefill --n-tokens 9000 --n-kv 9000").unwrap();
        assert_eq!((explanation.selected, explanation.top_k), (Path::Dense, None));
    }

    #[test]
    fn what_cannot_be_answered_is_named() {
        let package = package();
        for (args, said) in [
            ("--phase warp --n-tokens 1 --n-kv 1", "`phase` must be one of decode"),
            ("--phase decode --n-tokens 2 --n-kv 1", "`n_kv` counts"),
            ("--phase decode --n-tokens 1 --n-kv 1 --path auto", "`path` must be one of dense"),
            ("--phase decode --n-tokens 1 --n-kv 1 --backend tpu", "`backend` must be one of cpu"),
            ("--phase decode --n-tokens 1 --n-kv 1 --layers 5..9", "outside the model"),
        ] {
            let error = format!("{:#}", ask(&package, args).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
        let mut broken = testing::metadata();
        broken.remove("glm-dsa.attention.indexer.top_k");
        package.replace_fragment("/shared/metadata", &broken, &[]);
        let error = ask(&package, "--phase decode --n-tokens 1 --n-kv 1").unwrap_err();
        assert!(format!("{error:#}").contains("glm-dsa.attention.indexer.top_k"), "{error:#}");
    }
}
