//! Speculation: which strategy holds, and when a request gives up on it. Pure: no engine, no clock.
//!
//! How a draft is verified is in `serve`: the target model computes the chosen token and the draft behind it in one
//! pass, the next token is chosen from the target's own logits exactly as without speculation, and the draft only
//! decides whether the row behind it counts. So no text, no log-probability and no random number depends on drafts.

mod acceptance;
mod strategy;

pub use self::{
    acceptance::Acceptance,
    strategy::{DraftHead, Level, Requested, Speculation, SpeculationKind, StrategyError, StrategyPlan, plan},
};
