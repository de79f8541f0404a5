//! The `dsa` engine against an independent implementation: what `transformers` computes in float32 for a random GLM-DSA
//! model (`tests/fixtures/glm52`; its README says how both were made). All sizes of the model differ, top-k is 16, and the
//! three prompts are 8, 40 and 200 tokens long: below top-k, above it, and far above it.

use crate::support::{
    TestPackage,
    dsa::{self, Reference},
};
use skippy_stage::{
    policy::Path,
    stage::{
        Boundary, DraftRow, Purpose, Row, SeqId, Span, StageBatch, StageEngine, StageInput, StageOutput,
        dsa::DraftAttention,
    },
};

/// Largest difference of a logit or hidden value: float32 in another order of addition.
const TOLERANCE: f32 = 1e-4;
const LENGTHS: [usize; 3] = [8, 40, 200];

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "{what}: off by {worst}");
}

#[test]
fn a_prompt_in_one_pass_by_every_path() {
    let (package, reference) = (dsa::package(), Reference::open());
    for n in LENGTHS {
        let ids = reference.i32(&format!("ids_{n}"));
        for path in Path::ALL {
            let mut stage = dsa::whole(&package, None);
            let got = dsa::logits(&mut stage, 0, 0, &ids, Purpose::Prefill { prompt: n as u32 }, Some(*path));
            assert_close(&got, &reference.f32(&format!("full_{n}")), &format!("{n} tokens, {}", path.label()));
            assert_close(
                &got,
                &reference.f32(&format!("prefill_cached_{n}")),
                &format!("{n} tokens, {}", path.label()),
            );
        }
    }
}

#[test]
fn one_token_at_a_time_by_every_path() {
    let (package, reference) = (dsa::package(), Reference::open());
    for n in LENGTHS {
        let ids = reference.i32(&format!("ids_{n}"));
        for path in Path::ALL {
            let mut stage = dsa::whole(&package, None);
            let got: Vec<f32> = (0..n)
                .flat_map(|pos| {
                    let token = &ids[pos..=pos];
                    dsa::logits(&mut stage, 0, pos as u32, token, Purpose::Decode, Some(*path))
                })
                .collect();
            assert_close(&got, &reference.f32(&format!("step_{n}")), &format!("{n} steps, {}", path.label()));
        }
    }
}

#[test]
fn pieces_of_any_size_give_the_same_logits() {
    let (package, reference) = (dsa::package(), Reference::open());
    let (ids, full) = (reference.i32("ids_200"), reference.f32("full_200"));
    for piece in [3, 16, 17, 50, 96] {
        for path in Path::ALL {
            let mut stage = dsa::whole(&package, None);
            let got: Vec<f32> = (0..200)
                .step_by(piece)
                .flat_map(|pos| {
                    let part = &ids[pos..(pos + piece).min(200)];
                    dsa::logits(&mut stage, 0, pos as u32, part, Purpose::Prefill { prompt: 200 }, Some(*path))
                })
                .collect();
            assert_close(&got, &full, &format!("pieces of {piece}, {}", path.label()));
        }
    }
}

#[test]
fn greedy_answers_are_the_same_tokens() {
    let (package, reference) = (dsa::package(), Reference::open());
    for n in LENGTHS {
        let mut stage = dsa::whole(&package, None);
        let ids = reference.i32(&format!("ids_{n}"));
        let mut row = dsa::logits(&mut stage, 0, 0, &ids, Purpose::Prefill { prompt: n as u32 }, None);
        let answer: Vec<i32> = (0..32)
            .map(|step| {
                let next = dsa::argmax(&row[row.len() - 512..]);
                row = dsa::logits(&mut stage, 0, (n + step) as u32, &[next], Purpose::Decode, None);
                next
            })
            .collect();
        assert_eq!(answer, reference.i32(&format!("gen_ids_{n}")), "{n} tokens");
    }
}

#[test]
fn every_layer_gives_the_reference_rows() {
    let (package, reference) = (dsa::package(), Reference::open());
    for n in LENGTHS {
        let (ids, outs) = (reference.i32(&format!("ids_{n}")), reference.f32(&format!("layer_out_{n}")));
        for (end, expected) in (1..=5).zip(outs.chunks_exact(n * 96)) {
            let mut stage = dsa::range(&package, 0, end, None);
            let rows = dsa::rows(0, 0, n);
            let output = stage.forward(&StageBatch::new(StageInput::Tokens(&ids), &rows)).unwrap();
            let StageOutput::Hidden(boundary) = output else { panic!("no hidden rows") };
            assert_close(boundary.rows, expected, &format!("{n} tokens, layer {}", end - 1));
        }
    }
}

#[test]
fn lists_at_a_boundary_are_the_reference_selection() {
    let (package, reference) = (dsa::package(), Reference::open());
    // The next layer shares: 2 takes the list of 1, 3 too, 5 that of 4.
    for (end, full) in [(2, 1), (3, 1), (5, 4)] {
        for n in LENGTHS {
            let ids = reference.i32(&format!("ids_{n}"));
            let expected = reference.i32(&format!("topk_{n}_l{full}"));
            let width = expected.len() / n;
            let mut stage = dsa::range(&package, 0, end, None);
            let rows = dsa::rows(0, 0, n);
            let output = stage.forward(&StageBatch::new(StageInput::Tokens(&ids), &rows)).unwrap();
            let StageOutput::Hidden(Boundary { top_k: Some(lists), .. }) = output else { panic!("no lists") };
            for (row, (got, expected)) in lists.lists.chunks(lists.width).zip(expected.chunks(width)).enumerate() {
                let used = (row + 1).min(16);
                assert!(got[used..].iter().all(|entry| *entry == -1));
                // The reference fills up lists of early rows with positions that the row does not see.
                let mut expected: Vec<i32> = expected.iter().copied().filter(|at| *at <= row as i32).collect();
                expected.sort_unstable();
                assert_eq!(got[..used], expected, "{n} tokens, layer {full}, row {row}");
            }
        }
    }
}

#[test]
fn the_draft_head_gives_the_reference_logits() {
    let (package, reference) = (dsa::package(), Reference::open());
    for (attention, name) in [(DraftAttention::Dense, "mtp_dense"), (DraftAttention::Sparse, "mtp_dsa")] {
        for n in LENGTHS {
            let ids = reference.i32(&format!("ids_{n}"));
            // One token at a time, and all but the last few in one pass.
            for prompt in [1, n - 3] {
                let mut stage = dsa::whole(&package, Some(attention));
                let mut got = Vec::new();
                let mut pos = 0;
                while pos < n {
                    if pos > 0 || prompt == 1 {
                        got.extend_from_slice(stage.draft(&[DraftRow { seq: SeqId(0), token: ids[pos] }]).unwrap());
                    }
                    let end = if pos == 0 { prompt } else { pos + 1 };
                    let purpose = if pos == 0 { Purpose::Prefill { prompt: prompt as u32 } } else { Purpose::Decode };
                    drop(dsa::tracked(&mut stage, pos as u32, &ids[pos..end], purpose));
                    pos = end;
                }
                let expected = reference.f32(&format!("{name}_{n}"));
                assert_close(&got, &expected[expected.len() - got.len()..], &format!("{name}, {n} tokens"));
            }
        }
    }
}

/// Cuts before every layer, in two and in three stages: the same bits as the whole model.
#[test]
fn split_at_every_layer_is_bit_equal() {
    let (package, reference) = (dsa::package(), Reference::open());
    let ids = reference.i32("ids_200");
    let run = |cuts: &[u32]| -> Vec<f32> {
        let mut chain = dsa::chain(&package, cuts, Some(DraftAttention::Sparse));
        let mut all = dsa::tracked(&mut chain, 0, &ids[..180], Purpose::Prefill { prompt: 180 });
        for pos in 180..190 {
            all.extend_from_slice(chain.draft(&[DraftRow { seq: SeqId(0), token: ids[pos] }]).unwrap());
            all.extend(dsa::tracked(&mut chain, pos as u32, &ids[pos..=pos], Purpose::Decode));
        }
        // A window of three, two of which are dropped again.
        all.extend(dsa::tracked(&mut chain, 190, &ids[190..193], Purpose::Verify));
        chain.truncate(SeqId(0), 191).unwrap();
        all.extend_from_slice(chain.draft(&[DraftRow { seq: SeqId(0), token: ids[191] }]).unwrap());
        all.extend(dsa::tracked(&mut chain, 191, &ids[191..193], Purpose::Verify));
        all
    };
    let whole = run(&[]);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for first in 1..6 {
        assert_eq!(bits(&run(&[first])), bits(&whole), "cut at {first}");
        for second in first + 1..6 {
            assert_eq!(bits(&run(&[first, second])), bits(&whole), "cuts at {first} and {second}");
        }
    }
}

/// Few rows have the same bits in whatever company: alone, in a verify window, beside other sequences.
#[test]
fn neighbours_do_not_change_bits() {
    let (package, reference) = (dsa::package(), Reference::open());
    let (a, b) = (reference.i32("ids_200"), reference.i32("ids_40"));
    let mut alone = dsa::whole(&package, None);
    let mut together = dsa::whole(&package, None);
    for stage in [&mut alone, &mut together] {
        dsa::logits(stage, 0, 0, &a[..150], Purpose::Prefill { prompt: 150 }, None);
        dsa::logits(stage, 1, 0, &b[..10], Purpose::Prefill { prompt: 10 }, None);
    }
    let mut expected = Vec::new();
    for (seq, tokens, positions) in [(0, &a, 150..153), (1, &b, 10..12)] {
        for pos in positions {
            expected.extend(dsa::logits(&mut alone, seq, pos as u32, &tokens[pos..=pos], Purpose::Decode, None));
        }
    }
    let rows: Vec<Row> = dsa::rows(0, 150, 3).into_iter().chain(dsa::rows(1, 10, 2)).collect();
    let tokens: Vec<i32> = a[150..153].iter().chain(&b[10..12]).copied().collect();
    let span = |seq| Span { seq: SeqId(seq), purpose: Purpose::Verify, path: None, drafts: false };
    let spans = [span(0), span(1)];
    let batch = StageBatch { spans: &spans, ..StageBatch::new(StageInput::Tokens(&tokens), &rows) };
    let StageOutput::Logits(got) = together.forward(&batch).unwrap() else { panic!("no logits") };
    assert!(got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn sequences_are_copied_and_cut_with_their_indexer_keys() {
    let (package, reference) = (dsa::package(), Reference::open());
    let (ids, full) = (reference.i32("ids_200"), reference.f32("full_200"));
    let mut stage = dsa::whole(&package, Some(DraftAttention::Sparse));
    dsa::tracked(&mut stage, 0, &ids, Purpose::Prefill { prompt: 200 });
    stage.copy(SeqId(0), SeqId(2), 120).unwrap();
    stage.truncate(SeqId(0), 0).unwrap();
    dsa::logits(&mut stage, 0, 0, &reference.i32("ids_40"), Purpose::Prefill { prompt: 40 }, None);
    let got = dsa::logits(&mut stage, 2, 120, &ids[120..], Purpose::Prefill { prompt: 200 }, None);
    assert_close(&got, &full[120 * 512..], "the rest behind a copied prefix");
}

#[test]
fn a_shared_first_layer_needs_its_lists() {
    let package: TestPackage = dsa::package();
    let mut stage = dsa::range(&package, 2, 7, None);
    let (hidden, rows) = (vec![0.5; 20 * 96], dsa::rows(0, 0, 20));
    let mut message = |boundary: Boundary<'_>| {
        stage.forward(&StageBatch::new(StageInput::Hidden(boundary), &rows)).unwrap_err().to_string()
    };
    assert!(message(Boundary::new(&hidden)).contains("top-k lists are missing"));
    let good: Vec<i32> = (0..20).flat_map(|row| (0..16).map(move |at| if at <= row { at } else { -1 })).collect();
    for (at, value) in [(0, 1), (16 * 19, 500), (16 * 19 + 15, 20), (16 * 19 + 3, 2), (16 * 3 + 8, 0), (5, -2)] {
        let mut lists = good.clone();
        lists[at] = value;
        let top_k = Some(skippy_stage::stage::TopK { width: 16, lists: &lists });
        let error = message(Boundary { rows: &hidden, top_k });
        assert!(error.contains("ascending positions"), "{at}: {error}");
    }
    let top_k = Some(skippy_stage::stage::TopK { width: 8, lists: &good[..160] });
    assert!(message(Boundary { rows: &hidden, top_k }).contains("expected width 16"));
    let top_k = Some(skippy_stage::stage::TopK { width: 16, lists: &good });
    let boundary = Boundary { rows: &hidden, top_k };
    assert!(stage.forward(&StageBatch::new(StageInput::Hidden(boundary), &rows)).is_ok());
}
