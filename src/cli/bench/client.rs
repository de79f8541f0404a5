//! A client as small as can be: one streamed completion over a connection of its own, and when each of its tokens came.

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, time::timeout};

/// A whole answer takes longer than this only when something hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// A streamed answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// When the request was sent, its connection already open.
    pub(super) sent: Instant,
    /// When each piece of text was there.
    pub(super) pieces: Vec<Instant>,
    /// As the server counts them; absent unless the request asked for usage.
    pub(super) usage: Option<Usage>,
}

/// The server's own count.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
}

/// What counts of an event.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(default, borrow)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default, borrow)]
    text: std::borrow::Cow<'a, str>,
}

/// Posts `body` to `/v1/completions`; it must ask for a stream. `seen` is called with the number of pieces so far.
///
/// # Errors
/// When the server refuses, the stream breaks or holds an error, or it does not end with `[DONE]`.
pub(super) async fn stream(
    address: SocketAddr,
    body: &serde_json::Value,
    seen: impl FnMut(usize),
) -> anyhow::Result<Answer> {
    timeout(PATIENCE, exchange(address, body.to_string(), seen)).await.context("the server did not answer in time")?
}

async fn exchange(address: SocketAddr, body: String, mut seen: impl FnMut(usize)) -> anyhow::Result<Answer> {
    let connection = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    connection.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(connection);
    let request = Request::post("/v1/completions")
        .header(header::HOST, address.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let mut answer = Answer { sent: Instant::now(), pieces: Vec::new(), usage: None };
    let response = sender.send_request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        let message = body.collect().await?.to_bytes();
        anyhow::bail!("the server answered {status}: {}", String::from_utf8_lossy(&message));
    }
    let mut lines = Lines::default();
    let mut done = false;
    while let Some(frame) = body.frame().await {
        let now = Instant::now();
        let Ok(data) = frame?.into_data() else { continue };
        lines.push(&data);
        while let Some(line) = lines.next() {
            match line.strip_prefix(b"data: ") {
                None => {}
                Some(b"[DONE]") => done = true,
                Some(data) => take(data, now, &mut answer)?,
            }
        }
        seen(answer.pieces.len());
    }
    anyhow::ensure!(done, "the stream did not end with [DONE]");
    Ok(answer)
}

fn take(data: &[u8], now: Instant, answer: &mut Answer) -> anyhow::Result<()> {
    let event: Event<'_> = serde_json::from_slice(data).context("an event is not the JSON of a completion")?;
    if let Some(error) = event.error {
        anyhow::bail!("the server broke off: {error}");
    }
    if event.choices.iter().any(|choice| !choice.text.is_empty()) {
        answer.pieces.push(now);
    }
    answer.usage = event.usage.or(answer.usage);
    Ok(())
}

/// Cuts a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    /// Where the next line starts.
    start: usize,
}

impl Lines {
    fn push(&mut self, data: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(data);
    }

    /// The next whole line, without its end.
    fn next(&mut self) -> Option<&[u8]> {
        let rest = self.buffer.get(self.start..)?;
        let length = rest.iter().position(|byte| *byte == b'\n')?;
        self.start += length + 1;
        let line = &rest[..length];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_may_come_in_any_pieces() {
        let whole = b"data: a\n\ndata: b\r\n: ping\n\nrest";
        for cut in 0..whole.len() {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for part in [&whole[..cut], &whole[cut..]] {
                lines.push(part);
                while let Some(line) = lines.next() {
                    got.push(String::from_utf8_lossy(line).into_owned());
                }
            }
            assert_eq!(got, ["data: a", "", "data: b", ": ping", ""], "cut at {cut}");
        }
    }

    #[test]
    fn only_events_with_text_are_pieces() {
        let mut answer = Answer { sent: Instant::now(), pieces: Vec::new(), usage: None };
        let mut take = |data: &str| take(data.as_bytes(), Instant::now(), &mut answer);
        take(r#"{"choices":[{"index":0,"text":"a\n","finish_reason":null}],"usage":null}"#).unwrap();
        take(r#"{"choices":[{"index":0,"text":"","finish_reason":"length"}]}"#).unwrap();
        take(r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}"#).unwrap();
        assert!(take(r#"{"error":{"message":"no"}}"#).unwrap_err().to_string().contains("no"));
        assert!(take("nonsense").is_err());
        let usage = answer.usage.unwrap();
        assert_eq!((answer.pieces.len(), usage.prompt_tokens, usage.completion_tokens), (1, 5, 3));
    }
}
