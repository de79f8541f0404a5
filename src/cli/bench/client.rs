//! A client as small as can be: one streamed completion over one connection to our own server on loopback.

use anyhow::Context as _;
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// A whole answer takes longer than this only when something hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Streams a greedy completion and returns the number of chunks that carried a choice.
///
/// # Errors
/// When the server refuses, the stream breaks, or it does not end with `[DONE]`.
pub(super) async fn complete(address: SocketAddr, prompt: &[i32], max_tokens: usize) -> anyhow::Result<usize> {
    let body = serde_json::json!({
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true, "stream": true,
    })
    .to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let answer = timeout(PATIENCE, async {
        let mut connection = TcpStream::connect(address).await?;
        connection.set_nodelay(true)?;
        connection.write_all(head.as_bytes()).await?;
        connection.write_all(body.as_bytes()).await?;
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    })
    .await
    .context("the server did not answer in time")??;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    anyhow::ensure!(status.contains(" 200 "), "the server answered `{status}`");
    anyhow::ensure!(answer.contains("data: [DONE]"), "the stream did not end with [DONE]");
    Ok(answer.matches("data: {").count())
}
