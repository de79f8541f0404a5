//! Holds the tensors of fragments against the contract.

use std::collections::HashMap;

use super::{
    Config, ContractError,
    roles::TYPES,
    tensors::{Kind, TensorRule, layer_tensor},
};
use crate::{
    gguf::{Gguf, Metadata, TensorInfo},
    package::{StageFiles, manifest::fields::shown},
    policy::Role,
};

/// A layer whose tensors are complete. [`Config::layer_tensors`] has their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerLayout {
    /// The layer.
    pub layer: u32,
    /// Whether it selects rows by an indexer of its own; an MTP block without one is full, but attends densely.
    pub role: Role,
    /// Whether it has the indexer's tensors.
    pub indexer: bool,
    /// Whether it has one dense feed-forward part instead of experts.
    pub dense: bool,
    /// Which optional tensors it has, when it is the MTP block.
    pub mtp: Option<MtpLayout>,
}

/// What an MTP block has of its own; the model's stands in for what it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtpLayout {
    /// `nextn.embed_tokens.weight`
    pub embeddings: bool,
    /// `nextn.shared_head_norm.weight`
    pub head_norm: bool,
    /// `nextn.shared_head_head.weight`
    pub head: bool,
}

impl Config {
    /// Holds the tensors of a layer's fragment against [`Config::layer_tensors`].
    ///
    /// # Errors
    /// With the first tensor that is missing, unknown, or of a shape or type that cannot be computed with, and when the
    /// indexer's tensors contradict the layer's role.
    pub fn check_layer(&self, layer: u32, fragment: &Gguf) -> Result<LayerLayout, ContractError> {
        let (layout, faults) = self.layer_faults(layer, &fragment.tensors);
        match (layout, faults.into_iter().next()) {
            (Some(layout), None) => Ok(layout),
            (_, Some(fault)) => Err(fault),
            (None, None) => Err(ContractError::NoSuchLayer { layer, layer_count: self.layer_count }),
        }
    }

    /// Holds the tensors of a boundary fragment against [`Config::boundary_tensors`]. Returns whether it has the output
    /// head, or would have to use the embeddings for it.
    ///
    /// # Errors
    /// With the first tensor that is missing, unknown, or of a shape or type that cannot be computed with.
    pub fn check_boundary(&self, input: bool, output: bool, fragment: &Gguf) -> Result<bool, ContractError> {
        match self.boundary_faults(input, output, &fragment.tensors).into_iter().next() {
            Some(fault) => Err(fault),
            None => Ok(fragment.tensor("output.weight").is_some()),
        }
    }

    /// Holds all fragments of a stage against the contract and gives the layout of its layers, in order.
    ///
    /// # Errors
    /// As [`Config::check_layer`] and [`Config::check_boundary`], with the file.
    pub fn check_stage(&self, files: &StageFiles) -> Result<Vec<LayerLayout>, ContractError> {
        if let Some(file) = &files.embeddings {
            self.check_boundary(true, false, file.gguf()).map_err(|error| error.in_file(file))?;
        }
        if let Some(file) = &files.output {
            self.check_boundary(false, true, file.gguf()).map_err(|error| error.in_file(file))?;
        }
        let layouts = files
            .layers
            .iter()
            .map(|(layer, file)| self.check_layer(*layer, file.gguf()).map_err(|error| error.in_file(file)));
        layouts.collect()
    }

    /// Reads the metadata of a stage's package.
    ///
    /// # Errors
    /// As [`Config::read`], with the file.
    pub fn of_stage(files: &StageFiles) -> Result<Self, ContractError> {
        let metadata: &Metadata = &files.metadata.gguf().metadata;
        Self::read(metadata, files.layer_count).map_err(|error| error.in_file(&files.metadata))
    }

    /// Everything that is wrong with a layer's tensors, and its layout as far as the layer exists.
    pub(crate) fn layer_faults(&self, layer: u32, tensors: &[TensorInfo]) -> (Option<LayerLayout>, Vec<ContractError>) {
        let Some(role) = self.role(layer) else {
            return (None, vec![ContractError::NoSuchLayer { layer, layer_count: self.layer_count }]);
        };
        let has = |end: &str| {
            let name = layer_tensor(layer, end);
            tensors.iter().any(|tensor| tensor.name == name)
        };
        let prefix = layer_tensor(layer, "indexer.");
        let of_indexer = || tensors.iter().filter(|tensor| tensor.name.starts_with(&prefix));
        let mut rules = self.layer_tensors(layer);
        let mut found = Vec::new();
        let mut rest: Vec<&TensorInfo> = tensors.iter().collect();
        match (role, of_indexer().next()) {
            (Role::Shared, Some(first)) => {
                // One contradiction says it all; the single tensors would only repeat it.
                let problem = format!("it has an indexer (tensor `{}`)", shown(&first.name));
                found.push(self.role_fault(layer, role, problem));
                rest.retain(|tensor| !tensor.name.starts_with(&prefix));
            }
            (Role::Full, None) if !self.is_mtp(layer) => {
                found.push(self.role_fault(layer, role, format!("it has no indexer (tensors `{prefix}*`)")));
                rules.retain(|rule| !rule.name.starts_with(&prefix));
            }
            // A part of an indexer is no indexer.
            (_, Some(_)) => {
                for rule in rules.iter_mut().filter(|rule| rule.name.starts_with(&prefix)) {
                    rule.kind = Kind::Required;
                }
            }
            (_, None) => {}
        }
        found.extend(faults(&rules, &format!("layer {layer}"), rest));
        let mtp = self.is_mtp(layer).then(|| MtpLayout {
            embeddings: has("nextn.embed_tokens.weight"),
            head_norm: has("nextn.shared_head_norm.weight"),
            head: has("nextn.shared_head_head.weight"),
        });
        let indexer = of_indexer().next().is_some();
        (Some(LayerLayout { layer, role, indexer, dense: self.is_dense(layer), mtp }), found)
    }

    /// Everything that is wrong with the tensors of a boundary fragment.
    pub(crate) fn boundary_faults(&self, input: bool, output: bool, tensors: &[TensorInfo]) -> Vec<ContractError> {
        faults(&self.boundary_tensors(input, output), boundary_words(input, output), tensors)
    }

    fn role_fault(&self, layer: u32, role: Role, problem: String) -> ContractError {
        let source_of_role = format!("`{}.{TYPES}`, or its default", self.arch.name());
        ContractError::Role { layer, role: role.label(), source_of_role, problem }
    }
}

fn boundary_words(input: bool, output: bool) -> &'static str {
    match (input, output) {
        (true, false) => "the input boundary",
        (false, true) => "the output boundary",
        _ => "the boundaries",
    }
}

/// Everything that is wrong with `tensors`, in the order of the rules, then of the tensors.
fn faults<'t>(
    rules: &[TensorRule],
    part: &str,
    tensors: impl IntoIterator<Item = &'t TensorInfo>,
) -> Vec<ContractError> {
    let mut tensors: Vec<&TensorInfo> = tensors.into_iter().collect();
    let by_name: HashMap<&str, &TensorInfo> = tensors.iter().map(|tensor| (tensor.name.as_str(), *tensor)).collect();
    let mut faults = Vec::new();
    for rule in rules {
        let name = || rule.name.clone();
        match by_name.get(rule.name.as_str()) {
            None if rule.kind == Kind::Optional => {}
            None => faults.push(ContractError::MissingTensor { tensor: name(), expected: rule.shape.clone() }),
            Some(tensor) if !same_shape(&tensor.shape, &rule.shape) => {
                let (got, expected) = (tensor.shape.clone(), rule.shape.clone());
                faults.push(ContractError::Shape { tensor: name(), got, expected });
            }
            Some(tensor) if !rule.usage.allows(tensor.ty) => {
                let (got, expected) = (tensor.ty, rule.usage.types());
                faults.push(ContractError::Type { tensor: name(), got, expected });
            }
            Some(_) => {}
        }
    }
    tensors.retain(|tensor| rules.iter().all(|rule| rule.name != tensor.name));
    faults.extend(tensors.into_iter().map(|tensor| unknown(tensor, part)));
    // Without the split tensors the unsplit one is the cause, not an addition.
    faults.sort_by_key(|fault| !matches!(fault, ContractError::UnsplitKvB { .. }));
    faults
}

fn unknown(tensor: &TensorInfo, part: &str) -> ContractError {
    let name = shown(&tensor.name);
    match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((_, "attn_kv_b.weight")) => ContractError::UnsplitKvB { tensor: name },
        _ => ContractError::UnknownTensor { tensor: name, part: part.into() },
    }
}

/// ggml pads shapes with ones, and some writers store them.
fn same_shape(got: &[u64], expected: &[u64]) -> bool {
    let (head, tail) = got.split_at(expected.len().min(got.len()));
    tail.iter().all(|dim| *dim == 1)
        && expected.iter().enumerate().all(|(at, dim)| head.get(at).copied().unwrap_or(1) == *dim)
}
