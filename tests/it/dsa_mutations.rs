//! The comparison with the reference bites: models that are wrong in one respect do not pass it. Most of it shows only
//! above top-k, where the selection matters.

use crate::support::{
    dsa::{self, Reference},
    editing::Model,
};
use skippy_stage::{
    gguf::Value,
    stage::{Boundary, Purpose, StageBatch, StageEngine, StageInput, StageOutput, TopK},
};

/// What agreeing implementations differ by at most: `dsa_parity`'s tolerance.
const TOLERANCE: f32 = 1e-4;
/// What a wrong model must differ by at least at 200 tokens.
const SHOWS: f32 = 0.1;

fn worst(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Largest differences at 8 and at 200 tokens after `edit`.
fn differences(edit: impl FnOnce(&mut Model)) -> [f32; 2] {
    let mut model = Model::open(&dsa::fixture("model.gguf"));
    edit(&mut model);
    let (package, reference) = (model.package(), Reference::open());
    [8, 200].map(|n| {
        let mut stage = dsa::whole(&package, None);
        let ids = reference.i32(&format!("ids_{n}"));
        let got = dsa::logits(&mut stage, 0, 0, &ids, Purpose::Prefill { prompt: n as u32 }, None);
        worst(&got, &reference.f32(&format!("full_{n}")))
    })
}

#[test]
fn nothing_changed_agrees() {
    let [short, long] = differences(|_| {});
    assert!(short <= TOLERANCE && long <= TOLERANCE, "{short}, {long}");
}

#[test]
fn a_dropped_bias_of_the_indexers_norm_shows() {
    let [short, long] =
        differences(|model| model.ending("indexer.k_norm.bias").into_iter().for_each(|bias| bias.become_zeros()));
    assert!(long > SHOWS, "{long}");
    assert!(short <= TOLERANCE, "{short}: 8 rows are below top-k, where no indexer matters");
}

#[test]
fn a_dropped_correction_bias_shows() {
    let [_, long] =
        differences(|model| model.ending("exp_probs_b.bias").into_iter().for_each(|bias| bias.become_zeros()));
    assert!(long > SHOWS, "{long}");
}

#[test]
fn wrong_expert_weights_show() {
    let [_, long] = differences(|model| model.metadata.set("glm-dsa.expert_weights_scale", Value::F32(1.0)));
    assert!(long > SHOWS, "scale: {long}");
    let [_, long] = differences(|model| model.metadata.set("glm-dsa.expert_weights_norm", Value::Bool(false)));
    assert!(long > SHOWS, "norm: {long}");
}

#[test]
fn attending_to_everything_shows() {
    let [short, long] = differences(|model| model.metadata.set("glm-dsa.attention.indexer.top_k", Value::U32(4096)));
    assert!(long > SHOWS, "{long}");
    assert!(short <= TOLERANCE, "{short}: 8 rows are below top-k");
    let [_, long] = differences(|model| model.metadata.set("glm-dsa.attention.indexer.top_k", Value::U32(15)));
    assert!(long > SHOWS, "one row less: {long}");
}

/// The epsilon of the norms alone: a small error, but not one that passes.
#[test]
fn another_epsilon_shows() {
    let key = "glm-dsa.attention.layer_norm_rms_epsilon";
    let [short, long] = differences(|model| model.metadata.set(key, Value::F32(1e-4)));
    assert!(short.max(long) > TOLERANCE, "{short}, {long}");
}

/// A stage that starts on a shared layer obeys the lists it is given, so wrong ones show.
#[test]
fn a_wrong_list_at_a_boundary_shows() {
    let (package, reference) = (dsa::package(), Reference::open());
    for (n, visible) in [(8usize, false), (200, true)] {
        let (ids, rows) = (reference.i32(&format!("ids_{n}")), dsa::rows(0, 0, n));
        let mut front = dsa::range(&package, 0, 3, None);
        let output = front.forward(&StageBatch::new(StageInput::Tokens(&ids), &rows)).unwrap();
        let StageOutput::Hidden(Boundary { rows: hidden, top_k: Some(TopK { width, lists }) }) = output else {
            panic!("no lists")
        };
        let run = |lists: &[i32]| {
            let mut back = dsa::range(&package, 3, dsa::LAYERS, None);
            let boundary = Boundary { rows: hidden, top_k: Some(TopK { width, lists }) };
            match back.forward(&StageBatch::new(StageInput::Hidden(boundary), &rows)).unwrap() {
                StageOutput::Logits(logits) => worst(logits, &reference.f32(&format!("full_{n}"))),
                StageOutput::Hidden(_) => panic!("no logits"),
            }
        };
        assert!(run(lists) <= TOLERANCE);
        // The newest rows instead of the selected ones, and the selection of layer 0, which is another indexer's.
        let newest: Vec<i32> = (0..n as i32)
            .flat_map(|row| {
                (0..width as i32)
                    .map(move |i| (row + 1 - width as i32).max(0) + i)
                    .map(move |at| if at <= row { at } else { -1 })
            })
            .collect();
        let other = reference.i32(&format!("topk_{n}_l0"));
        let other: Vec<i32> = other
            .chunks_exact(other.len() / n)
            .zip(0i32..)
            .flat_map(|(list, row)| {
                let mut list: Vec<i32> = list.iter().copied().filter(|at| *at <= row).collect();
                list.sort_unstable();
                list.resize(width, -1);
                list
            })
            .collect();
        for (name, wrong) in [("newest", newest), ("layer 0", other)] {
            let off = run(&wrong);
            assert_eq!(off > SHOWS, visible, "{name}, {n} tokens: off by {off}");
        }
    }
}
