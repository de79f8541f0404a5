//! What a frame may hold at most.

use super::WireDtype;

/// Entries of a top-k list at most.
pub(super) const MAX_TOP_K: u32 = 1 << 14;
/// Bytes of a grammar or schema at most, as for [`GrammarEngine`](crate::grammar::GrammarEngine).
pub(super) const MAX_GRAMMAR_BYTES: usize = 1 << 18;
/// Entries of a logit bias at most.
pub(super) const MAX_BIAS: usize = 1024;
/// Bytes of a fault's text at most; what is longer is cut.
pub(super) const MAX_FAULT_BYTES: usize = 2048;
/// Bytes of a name (model, version, type, address) at most.
pub(super) const MAX_NAME_BYTES: usize = 512;

/// Room for everything in a frame that does not grow with rows.
const SLACK: usize = 1 << 16;

/// Limits of one link, learnt in its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Width of a hidden row.
    pub n_embd: u32,
    /// Rows of a step at most.
    pub n_batch: u32,
    /// Sequences: ids are below.
    pub n_seq_max: u32,
    /// Rows of a sequence: positions are below.
    pub n_ctx_seq: u32,
    /// Tokens of the vocabulary: ids are below. 0 where it is not known; then ids are only not negative.
    pub n_vocab: u32,
    /// Bytes of a frame at most.
    pub max_frame_bytes: usize,
    /// How hidden rows travel.
    pub wire: WireDtype,
}

impl FrameLimits {
    /// Limits with room for the largest frame that is possible under them. `takes_top_k`: top-k lists come along.
    pub fn new(n_embd: u32, n_batch: u32, n_seq_max: u32, n_ctx_seq: u32, takes_top_k: bool) -> Self {
        let mut limits =
            Self { n_embd, n_batch, n_seq_max, n_ctx_seq, n_vocab: 0, max_frame_bytes: 0, wire: WireDtype::F32 };
        let list = if takes_top_k { MAX_TOP_K.min(n_ctx_seq) as usize * 4 } else { 0 };
        // A token is 5 bytes at most, an alternative 9 of which there may be 255.
        let row = (n_embd as usize).saturating_mul(4).saturating_add(list + 16).max(255 * 9 + 32);
        let step = (n_batch as usize).saturating_mul(row).saturating_add(n_seq_max as usize * 64);
        let opening = (n_ctx_seq as usize).saturating_mul(5).saturating_add(MAX_GRAMMAR_BYTES + MAX_BIAS * 9);
        limits.max_frame_bytes = step.max(opening).saturating_add(SLACK);
        limits
    }

    /// The same for a vocabulary of `n_vocab` tokens.
    #[must_use]
    pub fn with_vocabulary(mut self, n_vocab: u32) -> Self {
        self.n_vocab = n_vocab;
        self
    }

    /// The same with hidden rows that travel as `wire`.
    #[must_use]
    pub fn with_wire(mut self, wire: WireDtype) -> Self {
        self.wire = wire;
        self
    }

    /// The first id that is no token.
    pub(super) fn token_end(&self) -> u32 {
        if self.n_vocab == 0 { i32::MAX as u32 } else { self.n_vocab.min(i32::MAX as u32) }
    }
}
