//! llama.cpp's samplers and our penalties on rows with known probabilities.

use std::{collections::BTreeSet, sync::Arc};

use crate::bundled::Server;
use skippy_stage::text::{SamplingParams, TextModel};

/// Tokens of the row with their probabilities; all others have none.
const TOKENS: [(i32, f32); 4] = [(70, 0.5), (71, 0.3), (72, 0.15), (73, 0.05)];

fn text() -> Arc<dyn TextModel> {
    Server::alone().text.clone()
}

fn row(text: &dyn TextModel) -> Vec<f32> {
    let mut row = vec![f32::NEG_INFINITY; text.n_vocab() as usize];
    for (token, probability) in TOKENS {
        row[token as usize] = 5.0 + probability.ln();
    }
    row
}

/// What 200 seeds draw after the tokens `before`.
fn drawn(text: &dyn TextModel, params: &SamplingParams, before: &[i32]) -> BTreeSet<i32> {
    let row = row(text);
    let one = |seed| {
        let mut sampler = text.sampler(&SamplingParams { seed: Some(seed), ..params.clone() }).unwrap();
        before.iter().for_each(|&token| sampler.accept(token));
        sampler.sample(&row)
    };
    (0..200).map(one).collect()
}

#[test]
fn every_parameter_does_what_it_says() {
    let text = text();
    let draws = |change: &dyn Fn(&mut SamplingParams), before: &[i32]| {
        let mut params = SamplingParams::default();
        change(&mut params);
        drawn(text.as_ref(), &params, before).into_iter().collect::<Vec<i32>>()
    };
    assert_eq!(draws(&|_| {}, &[]), [70, 71, 72, 73]);
    assert_eq!(draws(&|p| p.temperature = 0.0, &[]), [70]);
    assert_eq!(draws(&|p| p.temperature = 0.01, &[]), [70]);
    assert_eq!(draws(&|p| p.top_k = 2, &[]), [70, 71]);
    assert_eq!(draws(&|p| p.top_p = 0.4, &[]), [70]);
    assert_eq!(draws(&|p| p.min_p = 0.25, &[]), [70, 71, 72]);
    // The expected information is 1.14; that of the second token is 1.2, nearer than 0.69 of the first.
    assert_eq!(draws(&|p| p.typical_p = 0.2, &[]), [71]);
    assert_eq!(draws(&|p| p.typical_p = 0.7, &[]), [70, 71]);
    // Of those with at least 0.2 the least likely stays.
    let xtc = |p: &mut SamplingParams| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.2);
    assert_eq!(draws(&xtc, &[]), [71, 72, 73]);
    assert_eq!(draws(&|p| (p.xtc_probability, p.xtc_threshold) = (0.5, 0.2), &[]), [70, 71, 72, 73]);
    assert_eq!(draws(&|p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.6), &[]), [70, 71, 72, 73]);
    let greedy = |change: &dyn Fn(&mut SamplingParams), before: &[i32]| {
        draws(
            &|p: &mut SamplingParams| {
                change(p);
                p.temperature = 0.0;
            },
            before,
        )
    };
    assert_eq!(greedy(&|p| p.logit_bias = vec![(72, 3.0)], &[]), [72]);
    assert_eq!(greedy(&|p| p.repetition_penalty = 2.0, &[70]), [71]);
    assert_eq!(greedy(&|p| p.presence_penalty = 1.0, &[70]), [71]);
    assert_eq!(greedy(&|p| p.presence_penalty = 1.0, &[70, 71]), [70]);
    assert_eq!(greedy(&|p| p.frequency_penalty = 0.4, &[70]), [70]);
    assert_eq!(greedy(&|p| p.frequency_penalty = 0.4, &[70, 70, 70]), [71]);
    let dry = |p: &mut SamplingParams| p.dry_multiplier = 2.0;
    // "90 91" was followed by 70, and stands at the end again.
    assert_eq!(greedy(&dry, &[90, 91, 70, 92, 90, 91]), [71]);
    assert_eq!(greedy(&dry, &[91, 70, 92, 90, 91]), [70]);
    assert_eq!(
        greedy(
            &|p| {
                dry(p);
                p.dry_penalty_last_n = 4;
            },
            &[90, 91, 70, 92, 90, 91]
        ),
        [70]
    );
    assert_eq!(
        greedy(
            &|p| {
                dry(p);
                p.dry_allowed_length = 3;
            },
            &[90, 91, 70, 92, 90, 91]
        ),
        [70]
    );
    assert_eq!(
        greedy(
            &|p| {
                dry(p);
                p.dry_base = 1.0;
                p.dry_multiplier = 0.1;
            },
            &[90, 91, 70, 92, 90, 91]
        ),
        [70]
    );
    let breaker = String::from_utf8_lossy(&text.piece(91, true)).into_owned();
    assert_eq!(
        greedy(
            &|p| {
                dry(p);
                p.dry_sequence_breakers = vec![breaker.clone()];
            },
            &[90, 91, 70, 92, 90, 91]
        ),
        [70]
    );
}

#[test]
fn seeds_decide_and_nothing_else() {
    let text = text();
    let row = row(text.as_ref());
    let params = |seed| SamplingParams { seed: Some(seed), xtc_probability: 0.3, ..SamplingParams::default() };
    let run = |seed| {
        let mut sampler = text.sampler(&params(seed)).unwrap();
        (0..40).map(|_| sampler.sample(&row)).collect::<Vec<i32>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
    // 64 bits count, and so does the one seed that llama.cpp takes for "random".
    assert_ne!(run(7), run(7 | 1 << 40));
    assert_eq!(run(u64::from(u32::MAX)), run(u64::from(u32::MAX)));
}

#[test]
fn rows_without_probabilities_choose_nothing_and_harm_nothing() {
    let text = text();
    let nothing = vec![f32::NEG_INFINITY; text.n_vocab() as usize];
    let mut single = nothing.clone();
    single[75] = -3.0;
    let mut far = row(text.as_ref());
    far.iter_mut().for_each(|logit| *logit = logit.max(-200.0));
    let all = SamplingParams {
        seed: Some(1),
        top_k: 500,
        typical_p: 0.9,
        top_p: 0.9,
        min_p: 0.01,
        xtc_probability: 0.5,
        repetition_penalty: 1.3,
        dry_multiplier: 100.0,
        ..SamplingParams::default()
    };
    for params in
        [all.clone(), SamplingParams { typical_p: 0.99, ..SamplingParams { seed: Some(1), ..Default::default() } }]
    {
        let mut sampler = text.sampler(&params).unwrap();
        assert_eq!(sampler.sample(&nothing), -1);
        assert_eq!(sampler.sample(&single), 75);
        assert!(TOKENS.iter().any(|(token, _)| *token == sampler.sample(&far)));
    }
}
