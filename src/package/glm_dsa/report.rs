//! What a package promises and contains, and every way in which it breaks the contract, in one report.

use std::path::Path;

use serde::Serialize;

use super::{
    Config, ContractError, LayerLayout, Rope, Scaling,
    advertised::{self, PolicyField, policy_fields},
};
use crate::{
    gguf::GgufFile,
    package::{
        Code, Issue, Manifest, Package, Part, Severity, Sha256Digest, fragment::Entry, package::read_manifest,
        preflight::entries,
    },
    policy::Role,
};

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContractReport {
    /// Whether no issue is an error.
    pub ok: bool,
    /// Model coordinate, when the manifest could be read so far.
    pub model_id: Option<String>,
    /// Digest of the manifest, when there is one.
    pub manifest_sha256: Option<Sha256Digest>,
    /// The model, when its metadata keeps the contract.
    pub model: Option<ModelSummary>,
    /// The generation policy, field by field; empty without a model.
    pub generation: Vec<PolicyField>,
    /// Every finding, errors first.
    pub issues: Vec<Issue>,
}

/// The model in short.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelSummary {
    /// `general.architecture`
    pub architecture: &'static str,
    /// Layers, MTP block counted.
    pub layer_count: u32,
    /// IndexShare roles of the trunk, F for full and S for shared, and whether an MTP block follows: `FFSSFS + MTP`.
    pub roles: String,
    /// Rows that a query attends to at most.
    pub top_k: u32,
    /// Bytes for each token of the top-k list that shared layers take from the full layer before them.
    pub indexshare_bytes_per_token: u64,
    /// Bytes for each token of the caches of all layers, when they hold f16.
    pub kv_bytes_per_token_f16: KvBytes,
    /// Sizes.
    pub dimensions: Dimensions,
    /// The MTP block, when there is one whose fragment could be read.
    pub mtp: Option<MtpSummary>,
}

/// Bytes of caches for each token, in f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvBytes {
    /// Key-value latents, one row for each layer.
    pub attention_bytes: u64,
    /// Indexer keys, one row for each layer with an indexer.
    pub indexer_bytes: u64,
}

/// Sizes; [`Config`] says what each means.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Dimensions {
    pub n_embd: u32,
    pub n_vocab: u32,
    pub context_length: u32,
    pub n_head: u32,
    pub q_lora: u32,
    pub kv_lora: u32,
    pub rope_dim: u32,
    pub nope_dim: u32,
    pub v_dim: u32,
    pub indexer_heads: u32,
    pub indexer_dim: u32,
    pub dense_lead: u32,
    pub n_ff: u32,
    pub n_expert: u32,
    pub n_expert_used: u32,
    pub n_expert_shared: u32,
    pub n_ff_exp: u32,
    pub expert_scale: f32,
    pub expert_norm: bool,
    pub rms_eps: f32,
    pub rope_theta: f32,
    pub yarn_factor: Option<f32>,
}

/// What the MTP block has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MtpSummary {
    /// Its layer.
    pub layer: u32,
    /// Whether it selects rows; it attends densely otherwise.
    pub indexer: bool,
    /// Whether it has embeddings of its own.
    pub embeddings: bool,
    /// Whether it has an output norm of its own.
    pub head_norm: bool,
    /// Whether it has an output head of its own.
    pub head: bool,
}

/// Holds the package in `dir` against the contract and goes on after each fault as far as it makes sense.
///
/// `require_generation_policy` makes the profile `glm-dsa-v1` a duty: without it, or with a phase that is absent or not
/// known to this version, the package breaks the contract.
pub fn contract(dir: &Path, require_generation_policy: bool) -> ContractReport {
    let mut report = ContractReport {
        ok: false,
        model_id: None,
        manifest_sha256: None,
        model: None,
        generation: Vec::new(),
        issues: Vec::new(),
    };
    match read_manifest(dir) {
        Err(error) => report.issues.extend(error.issues()),
        Ok((root, bytes)) => {
            let digest = Sha256Digest::of(&bytes);
            report.manifest_sha256 = Some(digest);
            let (manifest, faults) = Manifest::check(&bytes);
            report.issues.extend(faults.iter().map(Issue::from));
            if let Some(manifest) = manifest {
                report.model_id = Some(manifest.model_id.clone());
                check_package(&Package::unchecked(root, manifest, digest), require_generation_policy, &mut report);
            }
        }
    }
    report.issues.sort_by_key(|issue| std::cmp::Reverse(issue.severity));
    report.ok = report.issues.iter().all(|issue| issue.severity < Severity::Error);
    report
}

fn check_package(package: &Package, required: bool, report: &mut ContractReport) {
    let manifest = package.manifest();
    let metadata = match package.open_metadata() {
        Ok((file, _)) => file,
        Err(error) => return report.issues.extend(error.issues()),
    };
    let config = match Config::read(&metadata.gguf().metadata, manifest.layer_count) {
        Ok(config) => config,
        Err(error) => {
            let entry = Entry::new(Part::Metadata, &manifest.shared.metadata);
            return report.issues.push(issue(&entry, &error));
        }
    };
    let mut layouts = Vec::new();
    for entry in entries(manifest).filter(|entry| !matches!(entry.part, Part::Metadata | Part::Projector(_))) {
        let file = match entry.open(package.root()) {
            Ok(file) => file,
            Err(error) => {
                report.issues.push(Issue::from(&error));
                continue;
            }
        };
        let (layout, faults) = check_fragment(&config, &entry, &file);
        layouts.extend(layout);
        // More than anybody reads of one file.
        report.issues.extend(faults.iter().take(32).map(|fault| issue(&entry, fault)));
    }
    let generation = manifest.generation.as_ref();
    report.issues.extend(advertised::check(&config, generation, required));
    report.generation = policy_fields(generation);
    report.model = Some(summary(&config, &layouts));
}

fn check_fragment(config: &Config, entry: &Entry<'_>, file: &GgufFile) -> (Option<LayerLayout>, Vec<ContractError>) {
    let tensors = &file.gguf().tensors;
    match entry.part {
        Part::Layer(layer) => config.layer_faults(layer, tensors),
        Part::Embeddings => (None, config.boundary_faults(true, false, tensors)),
        Part::Output => (None, config.boundary_faults(false, true, tensors)),
        Part::Metadata | Part::Projector(_) => (None, Vec::new()),
    }
}

fn issue(entry: &Entry<'_>, error: &ContractError) -> Issue {
    let message = format!("`{}`: {error}", entry.part.field());
    Issue::new(code(error), entry.artifact.path.as_str(), message)
}

fn code(error: &ContractError) -> Code {
    match error.kind() {
        ContractError::MissingKey { .. } | ContractError::Key { .. } => Code::GlmDsaMetadata,
        ContractError::Role { .. } => Code::GlmDsaRole,
        _ => Code::GlmDsaTensor,
    }
}

fn summary(config: &Config, layouts: &[LayerLayout]) -> ModelSummary {
    const F16: u64 = 2;
    let roles = config.roles.iter().take(config.trunk_layers as usize);
    let mut roles: String = roles.map(|role| if *role == Role::Full { 'F' } else { 'S' }).collect();
    if config.nextn_layers > 0 {
        roles.push_str(" + MTP");
    }
    let with_indexer = layouts.iter().filter(|layout| layout.indexer).count() as u64;
    let mtp = layouts.iter().find_map(|layout| {
        let mtp = layout.mtp?;
        let (embeddings, head_norm, head) = (mtp.embeddings, mtp.head_norm, mtp.head);
        Some(MtpSummary { layer: layout.layer, indexer: layout.indexer, embeddings, head_norm, head })
    });
    ModelSummary {
        architecture: config.arch.name(),
        layer_count: config.layer_count,
        roles,
        top_k: config.top_k,
        indexshare_bytes_per_token: config.sideband_bytes_per_token(),
        kv_bytes_per_token_f16: KvBytes {
            attention_bytes: F16 * u64::from(config.kv_row()) * u64::from(config.layer_count),
            indexer_bytes: F16 * u64::from(config.indexer_dim) * with_indexer,
        },
        dimensions: dimensions(config),
        mtp,
    }
}

fn dimensions(config: &Config) -> Dimensions {
    let Rope { theta, scaling, .. } = config.rope;
    Dimensions {
        n_embd: config.n_embd,
        n_vocab: config.n_vocab,
        context_length: config.context_length,
        n_head: config.n_head,
        q_lora: config.q_lora,
        kv_lora: config.kv_lora,
        rope_dim: config.rope_dim,
        nope_dim: config.nope_dim,
        v_dim: config.v_dim,
        indexer_heads: config.indexer_heads,
        indexer_dim: config.indexer_dim,
        dense_lead: config.dense_lead,
        n_ff: config.n_ff,
        n_expert: config.n_expert,
        n_expert_used: config.n_expert_used,
        n_expert_shared: config.n_expert_shared,
        n_ff_exp: config.n_ff_exp,
        expert_scale: config.expert_scale,
        expert_norm: config.expert_norm,
        rms_eps: config.rms_eps,
        rope_theta: theta,
        yarn_factor: match scaling {
            Scaling::None => None,
            Scaling::Yarn(yarn) => Some(yarn.factor),
        },
    }
}
