//! A number of requests at once: throughput, time to the first token, time between tokens.

use super::{Numbers, percentile, prompt::Prompts, target::Target, together};
use std::time::Duration;

/// Requests that start together.
pub(super) struct Load {
    pub(super) streams: usize,
    pub(super) words: usize,
    pub(super) tokens: usize,
}

impl Load {
    pub(super) fn what(&self) -> String {
        format!("{} streams, prompts of {} words, {} tokens", self.streams, self.words, self.tokens)
    }

    pub(super) async fn round(&self, target: &Target, prompts: &mut Prompts) -> anyhow::Result<Numbers> {
        let prompts = (0..self.streams).map(|_| prompts.next(self.words)).collect();
        let answers = together(target, prompts, self.tokens).await?;
        let began = answers.iter().map(|answer| answer.sent).min();
        let ended = answers.iter().filter_map(|answer| answer.pieces.last()).max();
        let took = ended.zip(began).map_or(Duration::ZERO, |(ended, began)| *ended - began);
        let prompt_tokens: usize = answers.iter().filter_map(|answer| Some(answer.usage?.prompt_tokens)).sum();
        let mut first: Vec<Duration> = answers.iter().map(|answer| answer.first()).collect();
        let mut gaps: Vec<Duration> =
            answers.iter().flat_map(|answer| answer.pieces.windows(2).map(|pair| pair[1] - pair[0])).collect();
        Ok(vec![
            ("tokens/s", (self.streams * self.tokens) as f64 / took.as_secs_f64()),
            ("first token p50 ms", percentile(&mut first, 0.5)),
            ("first token p95 ms", percentile(&mut first, 0.95)),
            ("between tokens p50 ms", percentile(&mut gaps, 0.5)),
            ("between tokens p95 ms", percentile(&mut gaps, 0.95)),
            ("prompt tokens", prompt_tokens as f64 / self.streams as f64),
        ])
    }
}
