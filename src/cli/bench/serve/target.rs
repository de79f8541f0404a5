//! A server to measure.

use super::super::client::{self, Answer};
use anyhow::Context as _;
use std::{net::SocketAddr, time::Duration};

/// Where a server listens, and what it wants to be asked.
#[derive(Clone, Debug)]
pub(super) struct Target {
    address: SocketAddr,
    model: Option<String>,
}

impl Target {
    /// Takes `http://HOST:PORT`, with or without a slash behind it.
    pub(super) async fn new(url: &str, model: Option<&str>) -> anyhow::Result<Self> {
        let authority = url.strip_prefix("http://").with_context(|| format!("`{url}` does not begin with http://"))?;
        let authority = authority.trim_end_matches('/');
        let mut addresses =
            tokio::net::lookup_host(authority).await.with_context(|| format!("`{url}`: expected http://HOST:PORT"))?;
        let address = addresses.next().with_context(|| format!("`{url}` has no address"))?;
        Ok(Self { address, model: model.map(str::to_owned) })
    }

    /// Streams exactly `tokens` greedy tokens. `seen` is called with the number of pieces so far.
    pub(super) async fn complete(
        &self,
        prompt: &str,
        tokens: usize,
        seen: impl FnMut(usize),
    ) -> anyhow::Result<Answer> {
        let mut body = serde_json::json!({
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": { "include_usage": true },
        });
        if let Some(model) = &self.model {
            body["model"] = model.as_str().into();
        }
        let answer = client::stream(self.address, &body, seen).await?;
        anyhow::ensure!(!answer.pieces.is_empty(), "the server sent no text");
        let generated = answer.usage.context("the server sent no usage")?.completion_tokens;
        anyhow::ensure!(generated == tokens, "the server generated {generated} tokens instead of {tokens}");
        Ok(answer)
    }
}

impl Answer {
    /// From the request to the first text.
    pub(super) fn first(&self) -> Duration {
        self.pieces.first().map_or(Duration::ZERO, |first| *first - self.sent)
    }
}
