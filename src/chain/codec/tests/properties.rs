//! What holds for every frame.

use proptest::{collection::vec, prelude::*};

use super::*;

/// Steps of `limits()`'s width, batch and context: some sequences in any order, any places, any numbers.
fn steps() -> impl Strategy<Value = StepFrame> {
    let run = (0..6_u32, 1..=2_u32, vec(any::<bool>(), 2), 0..4_u32, any::<bool>());
    let order = Just(vec![0_u32, 1, 2]).prop_shuffle();
    let finite = any::<f32>().prop_filter("finite", |value| value.is_finite());
    (order, vec(run, 1..=2), vec(0..100_i32, 4), vec(finite, 8), any::<u64>(), any::<bool>()).prop_map(
        |(order, runs, tokens, hidden, ticket, lists)| {
            let (mut rows, mut spans) = (Vec::new(), Vec::new());
            for (seq, (pos, n, outputs, purpose, drafts)) in order.into_iter().zip(runs) {
                rows.extend((0..n).map(|i| row(seq, pos + i, outputs[i as usize])));
                let purpose =
                    [Purpose::Prefill { prompt: pos }, Purpose::Decode, Purpose::Verify][purpose as usize % 3];
                let path = policy::Path::ALL.get(pos as usize).copied();
                spans.push(Span { seq: SeqId(seq), purpose, path, drafts });
            }
            let n = rows.len();
            let list = |row: &Row| [row.pos as i32 / 2, if row.pos > 0 { row.pos as i32 } else { -1 }, -1];
            let top_k = lists.then(|| (3, rows.iter().flat_map(list).collect()));
            let step = Step { ticket, tokens: tokens[..n].to_vec(), rows, spans };
            StepFrame { step, hidden: hidden[..2 * n].to_vec(), top_k }
        },
    )
}

fn reports() -> impl Strategy<Value = StepReport> {
    let logprob = -100.0..0.0_f32;
    let picked = (0..100_i32, prop::option::of(logprob.clone()), vec((0..100_i32, logprob), 0..3), any::<bool>())
        .prop_map(|(id, logprob, top, over)| Picked { id, logprob, top, over });
    let outcome = (vec(picked.clone(), 0..2), vec(picked, 0..2), prop::option::of(0..100_i32), any::<bool>(), "[a-z]?")
        .prop_map(|(scored, chosen, draft, no_guess, fault)| {
            let fault = (!fault.is_empty()).then_some(TailError::Remote(fault));
            Outcome { scored, chosen, draft, no_guess, fault }
        });
    (any::<u64>(), vec(outcome, 0..3), vec(any::<u64>(), 0..4)).prop_map(|(ticket, outcomes, compute_us)| {
        let outcomes = (0..).map(SeqId).zip(outcomes).collect();
        StepReport { result: StepResult { ticket, outcomes }, compute_us }
    })
}

/// Sound frames with a few bytes changed, cut or added.
fn mutated(frames: Vec<Bytes>) -> impl Strategy<Value = Bytes> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    (prop::sample::select(frames), vec(change, 1..6)).prop_map(|(bytes, changes)| {
        let mut bytes = bytes.to_vec();
        for (place, byte, kind) in changes {
            let place = place.index(bytes.len().max(1));
            match kind {
                0 if place < bytes.len() => bytes[place] = byte,
                1 => bytes.truncate(place),
                _ => bytes.insert(place.min(bytes.len()), byte),
            }
        }
        bytes.into()
    })
}

proptest! {
    #[test]
    fn every_step_comes_back(frame in steps()) {
        let down = Down::Step(frame);
        let back = decode_down(encode_down(down.clone(), WireDtype::F32).unwrap(), &limits()).unwrap();
        prop_assert_eq!(shown(&back), shown(&down));
    }

    #[test]
    fn every_report_comes_back(report in reports()) {
        let up = Up::Done(report);
        prop_assert_eq!(decode_up(encode_up(up.clone()), &limits()).unwrap(), up);
    }

    #[test]
    fn noise_never_panics(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode_down(bytes.clone().into(), &limits());
        let _ = decode_up(bytes.into(), &limits());
    }

    /// What is let through is sound: it comes back from another round as it is.
    #[test]
    fn mutated_frames_are_refused_or_sound(
        down in mutated(downs().into_iter().map(|down| encode_down(down, WireDtype::F32).unwrap()).collect()),
        up in mutated(ups().into_iter().map(encode_up).collect()),
    ) {
        if let Ok(down) = decode_down(down, &limits()) {
            let again = decode_down(encode_down(down.clone(), WireDtype::F32).unwrap(), &limits()).unwrap();
            prop_assert_eq!(shown(&again), shown(&down));
        }
        if let Ok(up) = decode_up(up, &limits()) {
            prop_assert_eq!(decode_up(encode_up(up.clone()), &limits()).unwrap(), up);
        }
    }
}
