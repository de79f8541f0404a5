//! Settings that a config file may give for every model and for single ones, so that several servers can share it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::Requested;

/// Tables `[models."<model_id>"]`, by the `model_id` of the package's manifest.
pub type ModelTables = BTreeMap<String, ModelFlags>;

/// What holds for one model only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModelFlags {
    /// How to speculate with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative_strategy: Option<String>,
}

/// The strategies asked for: one for the command line or for every model, and those of single models.
pub(super) fn requested(
    on_command_line: bool,
    strategy: Option<&str>,
    models: &ModelTables,
    model_id: &str,
) -> Requested {
    let strategy = strategy.map(str::to_owned);
    match on_command_line {
        true => Requested { command_line: strategy, ..Requested::default() },
        false => {
            let model = models.get(model_id).and_then(|model| model.speculative_strategy.clone());
            Requested { command_line: None, model, global: strategy }
        }
    }
}
