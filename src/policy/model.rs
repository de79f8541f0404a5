//! What a model's metadata tells the resolver.

use super::{Capability, Overrides, ResolverConfig, Role, is_sparse_architecture};
use crate::{
    gguf::Metadata,
    package::{
        LayerRange,
        glm_dsa::{Config, ContractError},
    },
};

impl<'a> ResolverConfig<'a> {
    /// Architecture, top-k and the roles of `layers`, for a model of `layer_count` layers; everything else as if nobody
    /// had said anything.
    ///
    /// # Errors
    /// When a model of a sparse architecture breaks its contract.
    pub fn of_model(
        metadata: &'a Metadata,
        layer_count: u32,
        layers: LayerRange,
    ) -> Result<ResolverConfig<'a>, ContractError> {
        let architecture = metadata.arch().unwrap_or_default();
        let (mut top_k, mut roles) = (None, Vec::new());
        if is_sparse_architecture(architecture) {
            let config = Config::read(metadata, layer_count)?;
            top_k = Some(config.top_k);
            roles = layers.iter().map(|layer| config.role(layer).unwrap_or(Role::Full)).collect();
        }
        Ok(Self {
            generation: None,
            architecture,
            top_k,
            roles,
            capability: Capability::default(),
            overrides: Overrides::default(),
            evidence: None,
        })
    }
}
