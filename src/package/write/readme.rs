//! The `README.md` that the spec asks of a published package ("Publishing Rules").

use std::fmt::Write as _;

use super::derive::Derived;
use crate::package::{
    Manifest, Sha256Digest,
    generation::{Open, Policy, SpeculativeDecoding, StrategyKind, Vocabulary},
};

/// What the README says beyond the manifest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// The package.
    pub(super) manifest: &'a Manifest,
    /// Digest of `model-package.json`.
    pub(super) manifest_sha256: Sha256Digest,
    /// `general.architecture`.
    pub(super) arch: &'a str,
    /// Tensors of the source, all of them compared.
    pub(super) tensors: usize,
    /// What was derived, and what was not.
    pub(super) derived: &'a Derived,
}

/// The text of the README.
pub(super) fn readme(facts: Facts<'_>) -> String {
    let Facts { manifest, manifest_sha256, arch, tensors, derived } = facts;
    let source = &manifest.source_model;
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());

    line(format!("# {}, layer package\n", manifest.model_id));
    line(
        "One GGUF fragment per transformer layer and a manifest, `model-package.json`: a stage loads the layers it"
            .into(),
    );
    line("owns and nothing else. Cut without loss from:\n".into());
    line("| | |\n|---|---|".into());
    line(format!("| source model | `{}` |", or_unknown(&source.canonical_ref)));
    line(format!("| source revision | `{}` |", or_unknown(&source.revision)));
    for file in &source.files {
        let digest = file.sha256.map_or("unknown".into(), |digest| digest.to_string());
        line(format!("| source file | `{}`, {} bytes, sha256 `{digest}` |", file.path, file.size_bytes.unwrap_or(0)));
    }
    line(format!("| manifest sha256 | `{manifest_sha256}` |"));
    line(format!("| architecture | `{arch}` |"));
    line(format!("| layers | {} |", manifest.layer_count));
    line(format!(
        "| activation width | {} |",
        manifest.activation_width.map_or("unknown".into(), |width| width.to_string())
    ));
    line(format!("| skippy ABI | `{}` |", manifest.skippy_abi_version));
    for projector in &manifest.projectors {
        let artifact = &projector.artifact;
        line(format!(
            "| projector | `{}`, {} bytes, sha256 `{}` |",
            artifact.path, artifact.artifact_bytes, artifact.sha256
        ));
    }

    line("\n## Generation defaults\n".into());
    line(generation(manifest));
    for note in &derived.notes {
        line(format!("- {note}"));
    }

    line("\n## Validation\n".into());
    line("```sh".into());
    line(format!(
        "skippy-model-package validate-package {} .",
        shell_word(source.primary_file.as_deref().unwrap_or("SOURCE.gguf"))
    ));
    line("```\n".into());
    line(format!(
        "Result at the time of writing: valid. All {tensors} tensors were read back from the fragments and compared with the\n\
         source byte for byte; each is in exactly one artifact."
    ));

    line("\n## Certification\n".into());
    line(certification(manifest, arch));
    out
}

fn generation(manifest: &Manifest) -> String {
    let Some(generation) = &manifest.generation else {
        return "None: the package declares no policy and no speculation.".into();
    };
    let mut parts = Vec::new();
    parts.extend(generation.policy.as_ref().map(policy));
    if let Some(thresholds) = &generation.thresholds {
        let shown = serde_json::to_string(thresholds).unwrap_or_default();
        parts.push(format!("- thresholds: `{shown}`"));
    }
    parts.extend(generation.speculative_decoding.as_ref().map(speculation));
    parts.join("\n")
}

fn policy(policy: &Policy) -> String {
    fn name<T: Vocabulary>(value: &Option<Open<T>>) -> &'static str {
        value.as_ref().and_then(Open::known).map_or("unknown", Vocabulary::name)
    }
    format!(
        "- policy profile `{}`: decode `{}`, short prefill `{}`, long prefill `{}`, verify `{}`, IndexShare `{}`",
        name(&policy.profile),
        name(&policy.decode),
        name(&policy.short_prefill),
        name(&policy.long_prefill),
        name(&policy.verify),
        name(&policy.indexshare),
    )
}

fn speculation(speculation: &SpeculativeDecoding) -> String {
    let mut out = format!("- speculation, default strategy `{}`", speculation.default.as_deref().unwrap_or("none"));
    for (id, strategy) in &speculation.strategies {
        let _ = write!(out, "\n  - `{id}`: `{}`", strategy.kind.name());
        if let StrategyKind::NativeMtp(mtp) = &strategy.kind {
            let depth = mtp.prediction_depth.unwrap_or(1);
            let layers = mtp.layer_indices.clone().unwrap_or_default();
            let _ = write!(out, ", prediction depth {depth}, layers {layers:?}");
        }
    }
    out
}

fn certification(manifest: &Manifest, arch: &str) -> String {
    let mut text = format!(
        "`skippy-model-package plan . --stages N` lists cuts that this runtime allows for `{arch}`. Between stages travel\n\
         hidden rows of {} values each",
        manifest.activation_width.unwrap_or(0)
    );
    let policy = manifest.generation.as_ref().and_then(|generation| generation.policy.as_ref());
    if policy.is_some_and(|policy| policy.indexshare.is_some()) {
        text.push_str("; a stage that starts on a shared layer also needs the top-k\nlists of the full layer before it (IndexShare sideband)");
    }
    text.push('.');
    text
}

/// `text` as one word of a shell command.
fn shell_word(text: &str) -> String {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/+=@%,".contains(c));
    if plain && !text.starts_with('-') { text.into() } else { format!("'./{}'", text.replace('\'', r"'\''")) }
}
