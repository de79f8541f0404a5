//! Callers that do not keep to the protocol.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc::{UnboundedSender, unbounded_channel},
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Streaming, transport::Endpoint};

use super::*;
use crate::{
    chain::codec::{
        pb::{self, down::Frame, stage_client::StageClient},
        tests::opening,
    },
    stage::SeqId,
};

/// A caller that sends messages unchecked.
struct Raw {
    frames: UnboundedSender<pb::Down>,
    answers: Streaming<pb::Up>,
}

async fn raw(called: &Called, first: Frame) -> Result<Raw, tonic::Status> {
    let (frames, sent) = unbounded_channel();
    frames.send(pb::Down { frame: Some(first) }).unwrap();
    let channel = Endpoint::from_shared(called.target().to_string()).unwrap().connect().await.unwrap();
    let answers = StageClient::new(channel).run(UnboundedReceiverStream::new(sent)).await?.into_inner();
    Ok(Raw { frames, answers })
}

fn message(down: Down) -> Frame {
    codec::down_to_message(down, WireDtype::F16).unwrap().frame.unwrap()
}

async fn fault(answers: &mut Streaming<pb::Up>) -> (FaultCode, String) {
    let up = timeout(LONG, answers.message()).await.unwrap().unwrap().unwrap();
    let limits = codec::tests::limits();
    match codec::up_from_message(up, &limits).unwrap() {
        Up::Fault(fault) => (fault.code, fault.text),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_first_frame_must_be_a_sound_hello() {
    let called = Called::plain().await;
    let mut bad = hello();
    bad.package_sha256 = "x".into();
    for (first, text) in [
        (message(Down::Ping { id: 1 }), "`frame` is something else, expected hello at the beginning"),
        (message(Down::Open(opening())), "`frame` is something else, expected hello at the beginning"),
        (message(Down::Hello(bad)), "`hello.package_sha256` is `x`, expected 64 hexadecimal digits in lower case"),
    ] {
        let mut raw = raw(&called, first).await.unwrap();
        assert_eq!(fault(&mut raw.answers).await, (FaultCode::Protocol, text.into()));
    }
}

/// Frames that lie end the session, with a fault for the caller and a reason for the owner.
#[tokio::test]
async fn a_lie_ends_the_session() {
    let mut called = Called::plain().await;
    let step = |change: fn(&mut pb::Step)| {
        let Frame::Step(mut step) = message(Down::Step(small())) else { panic!("no step") };
        change(&mut step);
        Frame::Step(step)
    };
    let lies = [
        (step(|s| s.hidden = s.hidden.slice(..15)), "`step.hidden` is 15 bytes, expected 16"),
        (step(|s| s.rows[0].seq = 77), "`step.rows[0].seq` is 77, expected a sequence of 0..3"),
        (
            step(|s| s.rows[0].pos = 1 << 31),
            "`step.rows[0].pos` is 2147483650 rows with those of the step, expected at most 8",
        ),
        (step(|s| s.hidden = vec![0xff; 16].into()), "`step.hidden` is NaN, expected finite numbers"),
        (message(Down::Hello(hello())), "`frame` is a second hello, expected anything else"),
        (message(Down::Truncate { seq: SeqId(9), n_keep: 0 }), "`truncate.seq` is 9, expected a sequence of 0..3"),
    ];
    for (lie, text) in lies {
        let mut raw = raw(&called, message(Down::Hello(hello()))).await.unwrap();
        let mut session = called.session().await;
        raw.frames.send(pb::Down { frame: Some(lie) }).unwrap();
        let LinkEnded::Protocol(error) = recv(&mut session).await.unwrap_err() else { panic!("another end") };
        assert_eq!(error.to_string(), text);
        assert_eq!(fault(&mut raw.answers).await, (FaultCode::Protocol, text.into()));
    }
    let (_link, _session) = called.linked().await;
}

#[tokio::test]
async fn a_frame_above_the_limit_is_refused_by_its_length() {
    let mut called = Called::plain().await;
    let raw = raw(&called, message(Down::Hello(hello()))).await.unwrap();
    let mut session = called.session().await;
    let step = pb::Step { hidden: vec![0; 32 << 20].into(), ..pb::Step::default() };
    raw.frames.send(pb::Down { frame: Some(Frame::Step(step)) }).unwrap();
    let ended = recv(&mut session).await.unwrap_err();
    assert!(matches!(&ended, LinkEnded::Protocol(error) if error.got.contains("33554")), "{ended}");
}

#[tokio::test]
async fn an_answer_that_lies_ends_the_link() {
    let mut called = Called::plain().await;
    let (mut link, session) = called.linked().await;
    session.replies.send(Up::Done(StepReport { compute_us: vec![0; 65], ..StepReport::default() })).unwrap();
    let ended = answer(&mut link).await.unwrap_err();
    assert_eq!(
        ended.to_string(),
        "the other end broke the protocol: `done.compute_us` is 65 stages, expected at most 64"
    );
}

#[tokio::test]
async fn who_says_nothing_is_hung_up_on() {
    let options = LinkOptions { hello_timeout: Duration::from_millis(100), ..LinkOptions::default() };
    let mut called = Called::start(Security::default(), options).await;
    // No HTTP/2 at all, and a beginning that never ends.
    for beginning in [&b""[..], b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n"] {
        let mut stream = TcpStream::connect(called.address).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let mut rest = Vec::new();
        // A reset is as good as an end.
        let _ = timeout(LONG, stream.read_to_end(&mut rest)).await.unwrap();
    }
    let (frames, sent) = unbounded_channel::<pb::Down>();
    let channel = Endpoint::from_shared(called.target().to_string()).unwrap().connect().await.unwrap();
    let error = timeout(LONG, StageClient::new(channel).run(UnboundedReceiverStream::new(sent))).await.unwrap();
    let code = error.unwrap_err().code();
    assert!(matches!(code, Code::DeadlineExceeded | Code::Unavailable | Code::Unknown | Code::Cancelled), "{code:?}");
    drop(frames);
    // A session outlives that time.
    let (link, mut session) = called.linked().await;
    assert!(timeout(Duration::from_millis(300), session.frames.recv()).await.is_err(), "nothing has happened");
    link.sender.send(Down::Truncate { seq: SeqId(0), n_keep: 0 }).unwrap();
    recv(&mut session).await.unwrap();
}

#[tokio::test]
async fn garbage_and_1000_connections_leave_nothing_behind() {
    let mut called = Called::plain().await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    drop(called.linked().await);
    let before = alive();
    for i in 0..1000_u32 {
        let mut stream = TcpStream::connect(called.address).await.unwrap();
        match i % 4 {
            0 => {}
            1 => stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap(),
            2 => drop(stream.write_all(&i.to_le_bytes().repeat(100)).await),
            _ => {
                stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
                drop(stream.write_all(&[0xff; 64]).await);
            }
        }
    }
    for _ in 0..20 {
        let (link, mut session) = called.linked().await;
        drop(link);
        assert_eq!(recv(&mut session).await.unwrap_err(), LinkEnded::Closed);
    }
    until(|| alive() <= before).await;
    let (_link, _session) = called.linked().await;
}
