//! Asking the resolver, once for each sequence of a pass.

use super::DsaStage;
use crate::{
    policy::{Inputs, Phase},
    stage::{Boundary, Purpose, Row, SpanDecision, StageBatch, StageError, StageInput},
};

impl DsaStage {
    /// Fills in `decisions`, in the order of the batch.
    pub(super) fn decide(&mut self, batch: &StageBatch<'_>) -> Result<(), StageError> {
        self.decisions.clear();
        let has_list = matches!(batch.input, StageInput::Hidden(Boundary { top_k: Some(_), .. }));
        for rows in batch.rows.chunk_by(|a, b| a.seq == b.seq) {
            let Some(Row { seq, pos, .. }) = rows.last().copied() else { continue };
            let n_tokens = u32::try_from(rows.len()).unwrap_or(u32::MAX);
            let span = batch.span(seq);
            let purpose = span.map_or_else(
                || if n_tokens == 1 { Purpose::Decode } else { Purpose::Prefill { prompt: n_tokens } },
                |span| span.purpose,
            );
            let phase = match purpose {
                Purpose::Decode => Phase::Decode,
                Purpose::Verify => Phase::Verify,
                Purpose::Prefill { prompt } => self.resolver.prefill(prompt),
            };
            let path = span.and_then(|span| span.path);
            let inputs = Inputs { path, has_list, ..Inputs::new(phase, n_tokens, pos + 1) };
            let decision = self.resolver.resolve(&inputs);
            self.announcer.tell(&self.resolver, &inputs, &decision);
            // Whatever the resolver was told of the roles: without a list there is nothing to attend to.
            if decision.refused || (self.starts_shared() && !has_list) {
                return Err(StageError::InvalidBatch(format!(
                    "layer {} shares the selection of the layer before it (IndexShare): the top-k lists are missing",
                    self.shape.layers.start()
                )));
            }
            self.decisions.push(SpanDecision { seq, decision });
        }
        Ok(())
    }
}
