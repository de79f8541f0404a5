use super::*;
use crate::{
    chain::codec::tests::{report, shown},
    pipeline::Step,
    stage::{Row, SeqId},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_arrive_in_order_between_threads() {
    let mut called = Called::plain().await;
    let (mut link, mut session) = called.linked().await;
    assert_eq!(
        (link.stages[0].address.as_str(), link.stages[0].layers),
        (called.target().to_string().as_str(), info().layers)
    );
    let worker = std::thread::spawn(move || {
        let mut seen = Vec::new();
        loop {
            match session.frames.recv_timeout(LONG).map(|frame| frame.unwrap()) {
                Ok(Down::Step(frame)) => {
                    let mut report = report();
                    report.result.ticket = frame.step.ticket;
                    session.replies.send(Up::Done(report)).unwrap();
                }
                Ok(other) => seen.push(shown(&other)),
                Err(ended) => return (seen, ended),
            }
        }
    });
    let head = std::thread::spawn(move || {
        for ticket in 0..200 {
            let mut frame = small();
            frame.step.ticket = ticket;
            link.sender.send(Down::Step(frame)).unwrap();
            link.sender.send(Down::Truncate { seq: SeqId(1), n_keep: ticket as u32 % 9 }).unwrap();
        }
        let mut tickets = Vec::new();
        while tickets.len() < 200 || link.rtt().is_none() {
            match link.receiver.recv_timeout(Duration::from_millis(1)).unwrap() {
                Some(Up::Done(report)) => tickets.push(report.result.ticket),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        tickets
    });
    assert_eq!(head.join().unwrap(), (0..200).collect::<Vec<u64>>());
    let (seen, ended) = worker.join().unwrap();
    let wanted = (0..200).map(|i| shown(&Down::Truncate { seq: SeqId(1), n_keep: i % 9 }));
    assert_eq!(seen, wanted.collect::<Vec<_>>());
    assert_eq!(ended, LinkEnded::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_64_mib_goes_through() {
    let (n_embd, n_batch) = (8192, 2048);
    let mut local = local();
    (local.info.n_embd, local.info.n_batch, local.info.n_ctx_seq) = (n_embd, n_batch, n_batch);
    let mut hello = hello();
    (hello.n_embd, hello.n_batch, hello.n_ctx_seq, hello.wire) = (n_embd, n_batch, n_batch, WireDtype::F32);
    let mut called = Called::start_as(local.clone(), Security::default(), LinkOptions::default()).await;
    let target = called.target();
    let calling = tokio::spawn(async move {
        link::connect(&target, hello, &Security::default(), &LinkOptions::default()).await.unwrap()
    });
    let mut session = called.session().await;
    session.replies.send(Up::Welcome(vec![local.info.clone()])).unwrap();
    let link = calling.await.unwrap();
    let rows: Vec<Row> = (0..n_batch).map(|pos| Row { seq: SeqId(0), pos, output: false }).collect();
    let step = Step { ticket: 1, tokens: vec![1; n_batch as usize], rows, spans: Vec::new() };
    let hidden = vec![0.25; (n_embd * n_batch) as usize];
    link.sender.send(Down::Step(StepFrame { step, hidden, top_k: None })).unwrap();
    let Down::Step(frame) = recv(&mut session).await.unwrap() else { panic!("another frame") };
    assert!(frame.hidden.len() == 1 << 24 && frame.hidden.iter().all(|&value| value == 0.25));
}

#[tokio::test]
async fn one_session_at_a_time() {
    let mut called = Called::plain().await;
    let (link, mut session) = called.linked().await;
    let error = called.connect().await.unwrap_err();
    let LinkError::Refused { fault, .. } = &error else { panic!("{error}") };
    assert_eq!((fault.code, fault.stage), (FaultCode::Busy, 1));
    assert!(error.to_string().contains(&format!("it serves {} already", session.peer)), "{error}");
    drop(link);
    assert_eq!(recv(&mut session).await.unwrap_err(), LinkEnded::Closed);
    drop(session);
    let (_link, _session) = called.linked().await;
}

#[tokio::test]
async fn either_end_may_close() {
    let mut called = Called::plain().await;
    let (mut link, session) = called.linked().await;
    session.replies.send(Up::Done(report())).unwrap();
    drop(session);
    assert_eq!(answer(&mut link).await, Ok(Up::Done(report())), "what was sent before comes first");
    assert_eq!(answer(&mut link).await, Err(LinkEnded::Closed));
    until(|| link.sender.send(Down::Truncate { seq: SeqId(0), n_keep: 0 }).is_err()).await;
    drop(link);
    let (link, mut session) = called.linked().await;
    drop(link.receiver);
    assert_eq!(recv(&mut session).await.unwrap_err(), LinkEnded::Closed);
    until(|| session.replies.send(Up::Done(report())).is_err()).await;
}

#[tokio::test]
async fn last_words_are_heard_at_the_end_and_what_stays_is_cut_off() {
    let mut called = Called::plain().await;
    let (mut link, session) = called.linked().await;
    let fault = Fault { stage: 1, code: FaultCode::Draining, text: "going down".into() };
    session.replies.send(Up::Fault(fault.clone())).unwrap();
    called.shutdown.cancel();
    timeout(LONG, &mut called.serving).await.unwrap().unwrap().unwrap();
    assert_eq!(answer(&mut link).await, Ok(Up::Fault(fault)));
    let ended = answer(&mut link).await.unwrap_err();
    assert!(matches!(ended, LinkEnded::Lost(_) | LinkEnded::Closed), "{ended}");
    let error = called.connect().await.unwrap_err();
    assert!(matches!(error, LinkError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn hidden_rows_that_f16_cannot_hold_are_refused_before_they_are_sent() {
    let mut called = Called::plain().await;
    let (link, mut session) = called.linked().await;
    let mut frame = step();
    frame.hidden[0] = 1e6;
    let error = link.sender.send(Down::Step(frame)).unwrap_err();
    assert!(error.to_string().contains("`step.hidden` is 1000000, expected a value that f16 can hold"), "{error}");
    link.sender.send(Down::Step(small())).unwrap();
    let Down::Step(frame) = recv(&mut session).await.unwrap() else { panic!("another frame") };
    assert_eq!(frame.hidden, [0.5; 8]);
}

/// Everything runs on this thread, and so counts on its recorder.
#[test]
fn metrics_move() {
    let recorder = crate::telemetry::local().unwrap();
    let value = |series: &str| -> f64 {
        let scrape = recorder.handle().render();
        let line = scrape.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("no series {series}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let mut called = Called::plain().await;
            let (mut link, session) = called.linked().await;
            for direction in ["in", "out"] {
                assert_eq!(value(&format!("skippy_link_up{{direction=\"{direction}\"}}")), 1.0);
            }
            assert_eq!(value("skippy_link_connects_total{outcome=\"up\"}"), 1.0);
            until(|| link.rtt().is_some()).await;
            assert_eq!(value("skippy_link_rtt_seconds_count"), 1.0);
            // Hello and ping one way, welcome and pong the other, each counted at both ends.
            assert_eq!(value("skippy_link_frames_total{direction=\"in\"}"), 4.0);
            assert_eq!(value("skippy_link_frames_total{direction=\"out\"}"), 4.0);
            assert!(value("skippy_link_bytes_total{direction=\"in\"}") > 300.0);
            assert!(called.connect().await.is_err());
            assert_eq!(value("skippy_link_connects_total{outcome=\"refused\"}"), 1.0);
            assert_eq!(value("skippy_link_faults_total{code=\"busy\"}"), 2.0, "told and heard");
            let fault = Fault { stage: 1, code: FaultCode::Engine, text: "broken".into() };
            session.replies.send(Up::Fault(fault)).unwrap();
            answer(&mut link).await.unwrap();
            assert_eq!(value("skippy_link_faults_total{code=\"engine\"}"), 2.0, "told and heard");
            drop((link, session));
            until(|| value("skippy_link_up{direction=\"in\"}") + value("skippy_link_up{direction=\"out\"}") == 0.0)
                .await;
        });
    });
}
