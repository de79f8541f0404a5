use super::*;
use crate::package::LayerRange;

type Change<T> = fn(&mut T);

#[tokio::test]
async fn a_stage_refuses_a_caller_that_does_not_fit_with_both_values() {
    let mut called = Called::plain().await;
    let cases: &[(Change<Hello>, &str)] = &[
        (|h| h.protocol = 2, "protocol version: the stage before has 2, stage 1 has 1"),
        (|h| h.package_sha256 = "0b".repeat(32), "package: the stage before has 0b0b0b"),
        (|h| h.model_id = "other".into(), "model: the stage before has other, stage 1 has org/model:Q4"),
        (|h| h.layer_count = 41, "layers of the model: the stage before has 41, stage 1 has 40"),
        (|h| h.start = 19, "expected layers to start at 19, stage 1 serves 20..40"),
        (|h| h.start = 0, "expected layers to start at 0, stage 1 serves 20..40"),
        (|h| h.n_embd = 3, "width of hidden rows: the stage before has 3, stage 1 has 2"),
        (|h| h.n_ctx_seq = 16, "context of a sequence (`--ctx-size`): the stage before has 16, stage 1 has 8"),
        (|h| h.n_seq_max = 4, "sequences (`--lanes`): the stage before has 4, stage 1 has 3"),
        (|h| h.n_batch = 1, "rows of a pass (`--batch-size`): the stage before has 1, stage 1 has 4"),
        (
            |h| h.cache_type_k = "f32".into(),
            "type of cached keys (`--cache-type-k`): the stage before has f32, stage 1 has f16",
        ),
        (
            |h| h.cache_type_v = "f16".into(),
            "type of cached values (`--cache-type-v`): the stage before has f16, stage 1 has q8_0",
        ),
        (|h| h.abi = "llama 2".into(), "engine ABI: the stage before has llama 2, stage 1 has llama 1"),
        (|h| h.route.push("two".into()), "the chain is a cycle: this stage (layers 20..40) is in it already"),
        (|h| h.route = vec!["x".into(); 64], "the chain has more than 64 stages"),
    ];
    for (change, text) in cases {
        let mut hello = hello();
        change(&mut hello);
        let (security, options) = (Security::default(), LinkOptions::default());
        let error = link::connect(&called.target(), hello, &security, &options).await.unwrap_err();
        let LinkError::Refused { fault, .. } = &error else { panic!("{error}") };
        assert_eq!(fault.code, FaultCode::Refused);
        assert!(fault.text.starts_with(text), "{error}");
        assert!(error.to_string().contains(&called.address.to_string()), "{error}");
    }
    let (_link, _session) = called.linked().await;
}

#[tokio::test]
async fn a_stage_without_a_draft_head_refuses_drafts() {
    let mut local = local();
    local.info.drafts = false;
    let called = Called::start_as(local, Security::default(), LinkOptions::default()).await;
    let error = called.connect().await.unwrap_err().to_string();
    assert!(error.contains("drafts are wanted (window 2), stage 1 has no draft head"), "{error}");
}

#[test]
fn a_caller_refuses_stages_that_do_not_complete_the_chain() {
    let two = |change: Change<[StageInfo; 2]>| {
        let mut stages = [info(), StageInfo { index: 2, instance: "three".into(), ..info() }];
        stages[0].layers = LayerRange::new(20, 30).unwrap();
        stages[0].drafts = false;
        stages[1].layers = LayerRange::new(30, 40).unwrap();
        change(&mut stages);
        handshake::check_welcome(&hello(), &stages).map_err(|error| error.to_string())
    };
    assert_eq!(two(|_| ()), Ok(()));
    let cases: &[(Change<[StageInfo; 2]>, &str)] = &[
        (|s| s[1].index = 1, "stage 2 calls itself stage 1"),
        (|s| s[1].instance = "two".into(), "the chain is a cycle: stage 2 (layers 30..40) is in it already"),
        (|s| s[1].instance = "one".into(), "the chain is a cycle: stage 2 (layers 30..40) is in it already"),
        (|s| s[1].layers = LayerRange::new(29, 40).unwrap(), "expected layers to start at 30, stage 2 serves 29..40"),
        (|s| s[1].layers = LayerRange::new(31, 40).unwrap(), "expected layers to start at 30, stage 2 serves 31..40"),
        (
            |s| s[1].layers = LayerRange::new(30, 39).unwrap(),
            "the chain ends at layer 39, the model has 40: the last stage needs a further one behind it",
        ),
        (|s| s[1].package_sha256 = "ff".repeat(32), "package: the stage before has 0a0a"),
        (
            |s| s[1].kv_types.0 = "f32".into(),
            "type of cached keys (`--cache-type-k`): the stage before has f16, stage 2 has f32",
        ),
        (|s| s[1].n_ctx_seq = 9, "context of a sequence (`--ctx-size`): the stage before has 8, stage 2 has 9"),
        (|s| s[1].drafts = false, "drafts are wanted (window 2), stage 2 has no draft head"),
    ];
    for (change, text) in cases {
        let error = two(*change).unwrap_err();
        assert!(error.starts_with(text), "{error}");
    }
}

#[tokio::test]
async fn a_welcome_that_does_not_fit_makes_no_link() {
    let mut called = Called::plain().await;
    let welcomed = async {
        let session = called.sessions.recv().await.unwrap();
        session.replies.send(Up::Welcome(vec![StageInfo { n_batch: 5, ..info() }])).unwrap();
        session
    };
    let target: Target = format!("http://{}", called.address).parse().unwrap();
    let (security, options) = (Security::default(), LinkOptions::default());
    let (link, mut session) = tokio::join!(link::connect(&target, hello(), &security, &options), welcomed);
    let error = link.unwrap_err();
    assert!(matches!(error, LinkError::Disagreement { .. }), "{error}");
    assert_eq!(recv(&mut session).await.unwrap_err(), LinkEnded::Closed);
}

#[tokio::test]
async fn a_fault_behind_the_next_stage_is_passed_on() {
    let mut called = Called::plain().await;
    let fault = Fault { stage: 2, code: FaultCode::Unavailable, text: "stage 2 does not answer".into() };
    let refused = async {
        let session = called.sessions.recv().await.unwrap();
        session.replies.send(Up::Fault(fault.clone())).unwrap();
    };
    let target: Target = format!("http://{}", called.address).parse().unwrap();
    let (security, options) = (Security::default(), LinkOptions::default());
    let (link, ()) = tokio::join!(link::connect(&target, hello(), &security, &options), refused);
    let LinkError::Refused { fault: told, .. } = link.unwrap_err() else { panic!("another error") };
    assert_eq!(told, fault);
}

#[tokio::test]
async fn who_is_not_welcomed_does_not_wait_for_ever() {
    let called = Called::plain().await;
    let options = LinkOptions { welcome_timeout: Duration::from_millis(50), ..LinkOptions::default() };
    let error = link::connect(&called.target(), hello(), &Security::default(), &options).await.unwrap_err();
    assert_eq!(error.to_string(), format!("stage 1 at http://{} did not answer within 0.05 s", called.address));
    // Nobody listens there: the port was given back.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let target = format!("http://{free}").parse().unwrap();
    let error = link::connect(&target, hello(), &Security::default(), &options).await.unwrap_err();
    assert!(error.to_string().contains("cannot be reached") && error.to_string().contains("refused"), "{error}");
}
