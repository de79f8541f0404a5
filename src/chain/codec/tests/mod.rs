mod faults;
mod properties;

use super::*;
use crate::{
    chain::{Fault, FaultCode, Hello, RemoteOpening, StageInfo, StepFrame, StepReport},
    grammar::GrammarSpec,
    package::LayerRange,
    pipeline::{Opening, Outcome, Picked, Step, StepResult, TailError},
    policy,
    stage::{Pieces, Purpose, Row, Span},
    text::SamplingParams,
};

/// Four rows of three sequences at width 2.
pub(in crate::chain) fn limits() -> FrameLimits {
    FrameLimits::new(2, 4, 3, 8, true).with_vocabulary(100)
}

fn row(seq: u32, pos: u32, output: bool) -> Row {
    Row { seq: SeqId(seq), pos, output }
}

pub(in crate::chain) fn step() -> StepFrame {
    let span = |seq, purpose, path, drafts| Span { seq: SeqId(seq), purpose, path, drafts };
    StepFrame {
        step: Step {
            ticket: u64::MAX,
            tokens: vec![0, 7, 99, 3],
            rows: vec![row(2, 3, false), row(2, 4, true), row(0, 7, true), row(1, 0, false)],
            spans: vec![
                span(2, Purpose::Verify, None, true),
                span(0, Purpose::Decode, Some(policy::Path::Fallback), false),
                span(1, Purpose::Prefill { prompt: 5 }, Some(policy::Path::Dense), true),
            ],
        },
        hidden: vec![0.0, -0.0, 1.5e-40, f32::MAX, f32::MIN_POSITIVE, -1e30, 0.1, 3.0],
        top_k: Some((3, vec![0, 2, 3, 1, 4, -1, 5, 6, 7, 0, -1, -1])),
    }
}

pub(in crate::chain) fn opening() -> RemoteOpening {
    RemoteOpening {
        opening: Opening {
            seq: SeqId(2),
            text: vec![1, 99, 0],
            prompt: 2,
            sampling: SamplingParams {
                temperature: 0.7,
                seed: Some(u64::MAX),
                top_k: 40,
                logit_bias: vec![(5, -100.0), (99, 0.25)],
                dry_penalty_last_n: -1,
                ..SamplingParams::default()
            },
            grammar: None,
            ignore_eos: true,
            logprobs: Some(0),
            budget: 6,
            kv_rows: 8,
        },
        grammar: Some(GrammarSpec::JsonSchema(serde_json::json!({"b": 0.1, "a": [1, null, "\u{e4}"]}))),
    }
}

pub(in crate::chain) fn hello() -> Hello {
    Hello {
        protocol: 1,
        package_sha256: "0a".repeat(32),
        model_id: "org/model:Q4".into(),
        layer_count: 40,
        start: 20,
        n_embd: 2,
        n_ctx_seq: 8,
        n_seq_max: 3,
        n_batch: 4,
        cache_type_k: "f16".into(),
        cache_type_v: "q8_0".into(),
        window: 2,
        abi: "llama 1".into(),
        version: "0.1.0".into(),
        wire: WireDtype::F16,
        route: vec!["one".into()],
    }
}

pub(in crate::chain) fn info() -> StageInfo {
    StageInfo {
        index: 1,
        instance: "two".into(),
        address: "http://b:19000".into(),
        layers: LayerRange::new(20, 40).unwrap(),
        layer_count: 40,
        engine: "dsa".into(),
        backend: "CPU".into(),
        kv_types: ("f16".into(), "q8_0".into()),
        n_ctx_seq: 8,
        n_seq_max: 3,
        n_batch: 4,
        n_embd: 2,
        n_vocab: 100,
        drafts: true,
        pieces: Pieces { unit: 1, most: 4 },
        prefix_step: 64,
        memory_bytes: u64::MAX,
        version: "0.1.0".into(),
        abi: "llama 1".into(),
        package_sha256: "0a".repeat(32),
        takes_top_k: true,
    }
}

pub(in crate::chain) fn report() -> StepReport {
    let outcome = Outcome {
        scored: vec![Picked { id: 3, logprob: Some(-0.5), top: vec![(3, -0.5), (99, -7.25)], over: false }],
        chosen: vec![Picked { id: 0, logprob: None, top: Vec::new(), over: true }],
        draft: Some(0),
        no_guess: false,
        fault: None,
    };
    let failed = Outcome { no_guess: true, fault: Some(TailError::Remote("no".into())), ..Outcome::default() };
    let outcomes = vec![(SeqId(2), outcome), (SeqId(0), failed)];
    StepReport { result: StepResult { ticket: 9, outcomes }, compute_us: vec![0, 12, u64::MAX] }
}

pub(in crate::chain) fn downs() -> Vec<Down> {
    vec![
        Down::Hello(hello()),
        Down::Open(opening()),
        Down::Step(step()),
        Down::Truncate { seq: SeqId(2), n_keep: 8 },
        Down::Copy { from: SeqId(0), to: SeqId(2), n_rows: 0 },
        Down::Ping { id: u64::MAX },
    ]
}

pub(in crate::chain) fn ups() -> Vec<Up> {
    let fault = |code: &FaultCode| Up::Fault(Fault { stage: 2, code: *code, text: "why".into() });
    let plain = [Up::Welcome(vec![info(), info()]), Up::Done(report()), Up::Pong { id: 0 }, Up::Draining { stage: 2 }];
    plain.into_iter().chain(FaultCode::ALL.iter().map(fault)).collect()
}

/// [`Down`] has no `==`; its debug form tells floats exactly.
pub(in crate::chain) fn shown(frame: &impl std::fmt::Debug) -> String {
    format!("{frame:?}")
}

#[test]
fn frames_come_back_as_they_were() {
    for down in downs() {
        let bytes = encode_down(down.clone(), WireDtype::F32).unwrap();
        assert_eq!(shown(&decode_down(bytes, &limits()).unwrap()), shown(&down));
    }
    for up in ups() {
        assert_eq!(decode_up(encode_up(up.clone()), &limits()).unwrap(), up);
    }
    for spec in [
        GrammarSpec::JsonObject,
        GrammarSpec::Text("root ::= \"a\"".into()),
        GrammarSpec::Regex("a+".into()),
        GrammarSpec::Lark("start: \"a\"".into()),
    ] {
        let down = Down::Open(RemoteOpening { grammar: Some(spec), ..opening() });
        let bytes = encode_down(down.clone(), WireDtype::F32).unwrap();
        assert_eq!(shown(&decode_down(bytes, &limits()).unwrap()), shown(&down));
    }
}

#[test]
fn half_precision_rounds_and_refuses_what_it_cannot_hold() {
    let limits = limits().with_wire(WireDtype::F16);
    let mut frame = step();
    frame.hidden = vec![0.1, 65504.0, -2.0, 1e-9, 0.0, 1.0, -0.5, 3.0];
    let bytes = encode_down(Down::Step(frame.clone()), WireDtype::F16).unwrap();
    let Down::Step(back) = decode_down(bytes, &limits).unwrap() else { panic!("another frame") };
    assert_eq!(back.hidden, [0.099975586, 65504.0, -2.0, 0.0, 0.0, 1.0, -0.5, 3.0]);
    frame.hidden[5] = 70000.0;
    let error = encode_down(Down::Step(frame), WireDtype::F16).unwrap_err();
    assert_eq!(error.to_string(), "`step.hidden` is 70000, expected a value that f16 can hold; send f32 instead");
}

#[test]
fn a_fault_of_the_tail_arrives_as_text() {
    let outcome = Outcome { fault: Some(TailError::NoToken(7)), ..Outcome::default() };
    let result = StepResult { ticket: 1, outcomes: vec![(SeqId(0), outcome)] };
    let bytes = encode_up(Up::Done(StepReport { result, compute_us: Vec::new() }));
    let Up::Done(back) = decode_up(bytes, &limits()).unwrap() else { panic!("another frame") };
    let fault = TailError::Remote("the sampler chose token 7, outside the vocabulary".into());
    assert_eq!(back.result.outcomes[0].1.fault, Some(fault));
}

#[test]
fn texts_of_faults_are_short_and_printable() {
    let text = format!("a\u{1b}[31m\n{}", "\u{e4}".repeat(2000));
    let bytes = encode_up(Up::Fault(Fault { stage: 0, code: FaultCode::Engine, text }));
    let Up::Fault(fault) = decode_up(bytes, &limits()).unwrap() else { panic!("another frame") };
    assert!(fault.text.starts_with("a [31m \u{e4}") && fault.text.len() <= 2048, "{}", fault.text.len());
}

/// The largest frame of each kind that the limits allow fits into `max_frame_bytes`.
#[test]
fn the_largest_frames_fit() {
    let limits = FrameLimits::new(64, 256, 16, 512, true).with_vocabulary(i32::MAX as u32);
    let n = limits.n_batch;
    let rows: Vec<Row> = (0..n).map(|i| row(i / 16, 256 + i % 16, true)).collect();
    let spans = (0..16).map(|seq| Span {
        seq: SeqId(seq),
        purpose: Purpose::Prefill { prompt: u32::MAX },
        path: Some(policy::Path::Fallback),
        drafts: true,
    });
    let step = Step { ticket: u64::MAX, tokens: vec![i32::MAX - 1; n as usize], rows, spans: spans.collect() };
    let list: Vec<i32> = (0..256).chain(std::iter::repeat_n(-1, 256)).collect();
    let frame = StepFrame { step, hidden: vec![1.0; 64 * n as usize], top_k: Some((512, list.repeat(n as usize))) };
    let bytes = encode_down(Down::Step(frame), WireDtype::F32).unwrap();
    decode_down(bytes, &limits).unwrap();

    let mut frame = opening();
    frame.opening.text = vec![i32::MAX - 1; 513];
    frame.opening.sampling.logit_bias = vec![(i32::MAX - 1, 1.0); 1024];
    frame.grammar = Some(GrammarSpec::Lark("a".repeat(1 << 18)));
    decode_down(encode_down(Down::Open(frame), WireDtype::F32).unwrap(), &limits).unwrap();

    let picked = Picked { id: i32::MAX - 1, logprob: Some(-1.0), top: vec![(i32::MAX - 1, -1.0); 255], over: true };
    let outcome = Outcome { scored: vec![picked; n as usize], ..Outcome::default() };
    let result = StepResult { ticket: 1, outcomes: vec![(SeqId(0), outcome)] };
    decode_up(encode_up(Up::Done(StepReport { result, compute_us: vec![u64::MAX; 64] })), &limits).unwrap();
}
