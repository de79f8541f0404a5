//! A deterministic engine and vocabulary for tests of the scheduler and of everything above it.
//!
//! [`FakeEngine`] computes its logits from the *whole token history* of a sequence, so any mix-up between lanes or a
//! wrong position changes the text. It can be stopped before each step ([`FakeEngine::gated`]), made to fail
//! ([`Probe::inject`]), made to draft ([`FakeEngine::drafting`]) and made to decide on paths ([`FakeEngine::deciding`]).

mod chain;
mod engine;
mod probe;
mod text;

pub use self::{
    chain::{FakeChain, Line},
    engine::FakeEngine,
    probe::{Call, Fault, Gate, Probe},
    text::FakeText,
};
use crate::{chat::Templates, package::LayerRange, serve::ModelCard, spec::Speculation};

/// Token that opens a text in [`FakeText`].
pub const BOS: i32 = 256;
/// Token that ends a text in [`FakeText`].
pub const EOG: i32 = 257;
/// Id of the first extra piece of [`FakeText::with_pieces`].
pub const FIRST_PIECE: i32 = 258;

/// splitmix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn hash(history: &[i32]) -> u64 {
    history.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &token| mix(hash ^ token as u64))
}

/// The token that the default rule makes most likely after `history`: a printable ASCII character.
pub fn next_token(history: &[i32]) -> i32 {
    32 + (hash(history) % 95) as i32
}

/// The greedy answer of the default rule to `prompt`, `n` tokens long.
pub fn answer(prompt: &[i32], n: usize) -> Vec<i32> {
    let mut history = prompt.to_vec();
    for _ in 0..n {
        history.push(next_token(&history));
    }
    history.split_off(prompt.len())
}

/// A template that writes every message as `[role:content]` and opens an answer with `[assistant:`.
pub const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}\
                            {% if add_generation_prompt %}[assistant:{% endif %}";

/// The model card of a [`FakeEngine`].
pub fn card() -> ModelCard {
    ModelCard {
        id: "fake".into(),
        created: 1_700_000_000,
        layer_count: whole().len(),
        layers: whole(),
        n_ctx: 0,
        n_embd: 8,
        n_vocab: 258,
        package_digest: "0".repeat(64),
        arch: "fake".into(),
        abi: "1.0.0".into(),
        speculation: Speculation::disabled(),
        policy: Some(std::sync::Arc::default()),
        chat: Templates::new(Some(TEMPLATE), None, "<bos>", "<eog>").map(std::sync::Arc::new),
    }
}

fn whole() -> LayerRange {
    match LayerRange::new(0, 4) {
        Ok(range) => range,
        Err(error) => unreachable!("{error}"),
    }
}
