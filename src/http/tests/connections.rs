//! Real sockets: clients that send nothing, half of something, or close one side only.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    lifecycle::{Served, rest, served, served_with},
    *,
};
use crate::serve::{FinishReason, testing::FIRST_PIECE};

const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// Reads to the end, which must come by itself.
async fn closed(served: &Served, sent: &[u8]) -> String {
    let mut stream = bounded(TcpStream::connect(served.address)).await.unwrap();
    stream.write_all(sent).await.unwrap();
    rest(stream).await
}

/// Connections without a whole head of a request cost memory and a descriptor each: they do not stay. A request that takes
/// longer does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_request_are_closed() {
    let (engine, gate) = FakeEngine::new(&FakeText::new(), 1, 64, 64).gated();
    let served = served(engine, HttpOptions { idle_timeout: SHORT, ..HttpOptions::default() }).await;
    let running = served.open("POST", "/v1/completions", &request(json!({})).to_string()).await;
    gate.batch();
    for sent in [
        "",
        "POST /v1/comp",
        "GET /livez HTTP/1.1\r\nHost: x\r\n",
        "PRI * HTTP/2.0\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n",
    ] {
        assert_eq!(closed(&served, sent.as_bytes()).await, "", "{sent}");
    }
    // Kept alive after an answer, then closed.
    let kept = closed(&served, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(kept.starts_with("HTTP/1.1 200") && !kept.contains("connection: close"), "{kept}");
    drop(gate);
    let answer = rest(running).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"finish_reason\":\"length\""), "{answer}");
}

/// A client that closes its sending side cannot be told from one that has left: its request ends, and its lane is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_closed_connection_counts_as_gone() {
    let served = served(FakeEngine::new(&FakeText::new(), 1, 1 << 20, 64), HttpOptions::default()).await;
    let body = request(json!({"stream": true, "max_tokens": 1 << 19})).to_string();
    let mut running = served.open("POST", "/v1/completions", &body).await;
    bounded(running.read_exact(&mut [0; 200])).await.unwrap();
    running.shutdown().await.unwrap();
    // Reading on, so that it is not the unread rest that ends it.
    let mut taken = Vec::new();
    let _ = bounded(running.read_to_end(&mut taken)).await;
    assert!(!taken.ends_with(b"data: [DONE]\n\n"));
    until(|| served.app.serve.totals().finished(FinishReason::Cancelled) == 1).await;
    served.app.assert_alive().await;
}

/// lattice#744: a client that reads nothing is cut off, and everybody else is served meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lattice_744_a_client_that_reads_nothing_is_cut_off() {
    let text = FakeText::with_pieces([[b'x'; 60_000].as_slice()]);
    let engine = FakeEngine::new(&text, 2, 1 << 20, 64).with_rule(|_| FIRST_PIECE);
    let served = served_with(text, engine, HttpOptions { stall_timeout: SHORT, ..HttpOptions::default() }).await;
    // Gigabytes.
    let body = request(json!({"stream": true, "max_tokens": 1 << 19})).to_string();
    let mut standing = served.open("POST", "/v1/completions", &body).await;
    until(|| served.app.serve.status().lanes_busy == 1).await;
    served.app.assert_alive().await;
    until(|| served.app.serve.totals().finished(FinishReason::Cancelled) == 1).await;
    // What the buffers held can still be read. Then comes the end, too early.
    let mut taken = Vec::new();
    let _ = bounded(standing.read_to_end(&mut taken)).await;
    assert!(!taken.is_empty() && !taken.ends_with(b"data: [DONE]\n\n"), "{} bytes", taken.len());
}

/// Two requests on one connection, sent together, are answered in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_connection_are_answered_in_order() {
    let served = served(FakeEngine::new(&FakeText::new(), 1, 64, 64), HttpOptions::default()).await;
    let sent = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answer = closed(&served, sent).await;
    let (models, live) = (answer.find("\"object\":\"list\"").unwrap(), answer.find("\"phase\":\"ready\"").unwrap());
    assert!(models < live, "{answer}");
}

/// HTTP/2 without asking first, as gateways speak it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_by_prior_knowledge() {
    let served = served(FakeEngine::new(&FakeText::new(), 1, 64, 64), HttpOptions::default()).await;
    let mut stream = bounded(TcpStream::connect(served.address)).await.unwrap();
    // The preface and an empty SETTINGS frame: the server sends its own SETTINGS, a frame of type 4 on stream 0.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut frame = [0; 9];
    bounded(stream.read_exact(&mut frame)).await.unwrap();
    assert_eq!((frame[3], &frame[5..]), (4, &[0; 4][..]));
}
