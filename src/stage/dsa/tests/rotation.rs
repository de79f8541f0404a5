//! A wrong pairing of the indexer's rotated elements is caught by the comparison with the reference, above top-k only.

use super::*;
use crate::stage::Row;

/// Largest difference from the reference at `n` tokens after `edit`.
fn difference(n: usize, edit: fn(&mut Dims)) -> f32 {
    let mut stage = stage();
    edit(&mut stage.dims);
    let ids: Vec<i32> = reference(&format!("ids_{n}")).into_iter().map(i32::from_le_bytes).collect();
    let rows: Vec<Row> = (0..n as u32).map(|pos| Row { seq: SeqId(0), pos, output: true }).collect();
    let output = stage.forward(&StageBatch::new(StageInput::Tokens(&ids), &rows)).unwrap();
    let StageOutput::Logits(got) = output else { panic!("no logits") };
    let expected = reference(&format!("full_{n}"));
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - f32::from_le_bytes(b)).abs()).fold(0.0, f32::max)
}

#[test]
fn half_split_rotation_of_the_indexer_shows() {
    assert!(difference(200, |_| {}) <= 1e-4);
    let off = difference(200, |dims| dims.indexer_rotary.half_split = true);
    assert!(off > 0.1, "{off}");
    let off = difference(8, |dims| dims.indexer_rotary.half_split = true);
    assert!(off <= 1e-4, "{off}: 8 rows are below top-k, where no indexer matters");
}

#[test]
fn half_split_rotation_of_attention_shows_at_any_length() {
    for n in [8, 200] {
        let off = difference(n, |dims| dims.rotary.half_split = true);
        assert!(off > 0.1, "{n} tokens: {off}");
    }
}

#[test]
fn wrong_scales_show() {
    // A positive factor of all scores selects the same rows.
    assert!(difference(200, |dims| dims.indexer_scale *= 2.0) <= 1e-4);
    assert!(difference(200, |dims| dims.indexer_scale *= -1.0) > 0.1);
    assert!(difference(200, |dims| dims.score_scale *= 1.1) > 0.1);
}
