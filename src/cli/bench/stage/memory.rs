//! What a long prompt takes in memory besides weights and cache.

use super::{rows::CachedRows, side::Side};
use anyhow::Context as _;
use serde::Serialize;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How often memory is looked at. Buffers of a pass live as long as the pass.
const EVERY: Duration = Duration::from_millis(2);

/// Memory of the `dsa` engine while it reads a prompt.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Memory {
    /// Rows cached before.
    at: u32,
    /// Tokens of the prompt.
    tokens: u32,
    /// Rows of a pass.
    chunk: u32,
    /// Largest resident memory that is no file, less what it was with the cache filled: mapped weights do not count, nor do
    /// cached rows, the prompt's own included.
    extra_bytes: u64,
}

impl Memory {
    /// Reads a prompt of `tokens` behind `at` rows. The engine must not have read any before: it keeps its buffers.
    pub(super) fn measure(
        side: &mut Side,
        cached: &CachedRows,
        (at, tokens): (u32, u32),
        chunk: u32,
    ) -> anyhow::Result<Self> {
        // So that the rows of the prompt are resident, too.
        side.fill(cached, at + tokens)?;
        side.shorten(at)?;
        crate::llama::trim_heap();
        let before = anonymous()?;
        let (done, mut most) = (AtomicBool::new(false), before);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| -> anyhow::Result<u64> {
                let mut most = 0;
                while !done.load(Ordering::Relaxed) {
                    most = most.max(anonymous()?);
                    std::thread::sleep(EVERY);
                }
                Ok(most)
            });
            let read = side.prompt(tokens, chunk);
            done.store(true, Ordering::Relaxed);
            let watched = watch.join().map_err(|_| anyhow::anyhow!("the thread that watches memory has panicked"))?;
            // The engine keeps its buffers, so that even a thread that was never run misses little.
            most = most.max(watched?).max(anonymous()?);
            read
        })?;
        Ok(Self { at, tokens, chunk, extra_bytes: most - before })
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        format!(
            "memory of a prompt of {} tokens at {} rows, {} rows a pass: {:.1} MiB besides weights and cache\n",
            self.tokens,
            self.at,
            self.chunk,
            self.extra_bytes as f64 / f64::from(1 << 20)
        )
    }
}

/// Bytes of resident memory that is no file.
fn anonymous() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("memory can be measured on Linux only")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib << 10)
}
