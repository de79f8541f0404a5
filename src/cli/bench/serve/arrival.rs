//! What running streams see of a long prompt that arrives.

use super::{Numbers, percentile, prompt::Prompts, target::Target};
use anyhow::Context as _;
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinSet};

/// Words of the prompts of the streams.
const WORDS: usize = 32;
/// Pieces of text that each stream has got when the long prompt is sent.
const SETTLED: usize = 32;
/// Tokens of each stream: it must last until the long prompt is through.
const TOKENS: usize = 512;

/// Streams that run, and a prompt that comes.
pub(super) struct Arrival {
    pub(super) streams: usize,
    pub(super) words: usize,
}

impl Arrival {
    pub(super) fn what(&self) -> String {
        format!("{} streams run, a prompt of {} words arrives", self.streams, self.words)
    }

    pub(super) async fn round(&self, target: &Target, prompts: &mut Prompts) -> anyhow::Result<Numbers> {
        let (settled, mut settling) = mpsc::unbounded_channel();
        let mut running = JoinSet::new();
        for _ in 0..self.streams {
            let (target, prompt, settled) = (target.clone(), prompts.next(WORDS), settled.clone());
            running.spawn(async move {
                let mut told = false;
                let seen = |pieces| {
                    if pieces >= SETTLED && !told {
                        told = true;
                        // The receiver is gone only when the round has failed.
                        let _ = settled.send(());
                    }
                };
                target.complete(&prompt, TOKENS, seen).await
            });
        }
        drop(settled);
        for _ in 0..self.streams {
            settling.recv().await.context("a stream ended early")?;
        }
        let late = target.complete(&prompts.next(self.words), 1, |_| {}).await?;
        let read = *late.pieces.first().context("no first token")?;
        let mut streams = Vec::new();
        while let Some(done) = running.join_next().await {
            streams.push(done??.pieces);
        }
        let through = streams.iter().all(|pieces| pieces.last().is_some_and(|last| *last > read));
        anyhow::ensure!(through, "the streams ended before the long prompt was through");

        let all_run = streams.iter().filter_map(|pieces| pieces.first()).max().copied().context("no streams")?;
        let (mut before, mut during) = (Vec::new(), Vec::new());
        for pair in streams.iter().flat_map(|pieces| pieces.windows(2)) {
            let gap: Duration = pair[1] - pair[0];
            if pair[0] >= all_run && pair[1] <= late.sent {
                before.push(gap);
            } else if pair[1] > late.sent && pair[0] < read {
                during.push(gap);
            }
        }
        let (p95_before, p95_during) = (percentile(&mut before, 0.95), percentile(&mut during, 0.95));
        Ok(vec![
            ("between tokens p95 before ms", p95_before),
            ("between tokens p95 during ms", p95_during),
            ("during / before", p95_during / p95_before),
            ("longest pause during ms", percentile(&mut during, 1.0)),
            ("first token of the long prompt ms", late.first().as_secs_f64() * 1e3),
        ])
    }
}
