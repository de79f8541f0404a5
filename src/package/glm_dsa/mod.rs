//! The GLM-DSA contract: what a model of architecture `glm-dsa` or `deepseek32` must state and contain.
//!
//! [`Config`] is the model's metadata, parsed once into values that cannot be wrong. From it follow the exact name, shape
//! and use of every tensor ([`Config::layer_tensors`], [`Config::boundary_tensors`]), and [`Config::check_layer`] and
//! [`Config::check_boundary`] hold fragments against them. What passes can be computed with: no key is missing that would
//! silently change the output, no tensor is left unused, and IndexShare roles agree with the tensors.

mod advertised;
mod check;
mod config;
mod error;
mod keys;
mod recommended;
mod report;
mod roles;
mod rope;
mod tensors;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use advertised::PolicyField;
pub use check::{LayerLayout, MtpLayout};
pub use config::{Arch, Config, Gating};
pub use error::ContractError;
pub use recommended::{recommended_policy, recommended_thresholds};
pub use report::{ContractReport, Dimensions, KvBytes, ModelSummary, MtpSummary, contract};
pub use rope::{IndexerRope, Rope, Scaling, Yarn};
pub use tensors::{Kind, TensorRule, Usage};

/// Epsilon of the LayerNorm on indexer keys, which no metadata key states.
pub const INDEXER_NORM_EPS: f32 = 1e-6;
