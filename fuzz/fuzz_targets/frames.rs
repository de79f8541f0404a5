//! A byte that says which way, then a frame between stages: it is refused in short, printable words, or what comes out
//! holds what an engine relies on and survives another round trip unchanged.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use skippy_stage::chain::{
    Down, FrameLimits, Up, WireDtype,
    codec::{FrameError, decode_down, decode_up, encode_down, encode_up},
};

fuzz_target!(|bytes: &[u8]| {
    let Some((way, frame)) = bytes.split_first() else { return };
    let frame = frame.to_vec().into();
    let wire = if way & 2 == 0 { WireDtype::F32 } else { WireDtype::F16 };
    let limits = FrameLimits::new(2, 4, 3, 8, true).with_vocabulary(100).with_wire(wire);
    if way & 1 == 0 {
        let Some(down) = checked(decode_down(frame, &limits)) else { return };
        check_down(&down);
        let bytes = encode_down(down.clone(), wire).expect("what came as this type can go as it");
        same(&down, &decode_down(bytes, &limits).expect("what was let through is let through again"));
    } else {
        let Some(up) = checked(decode_up(frame, &limits)) else { return };
        check_up(&up);
        same(&up, &decode_up(encode_up(up.clone()), &limits).expect("what was let through is let through again"));
    }
});

fn checked<T>(frame: Result<T, FrameError>) -> Option<T> {
    frame
        .inspect_err(|error| {
            let message = error.to_string();
            assert!(message.len() < 2000 && !message.contains(char::is_control), "{message:?}");
        })
        .ok()
}

/// The debug form tells floats exactly.
fn same(one: &impl Debug, other: &impl Debug) {
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}

fn check_down(down: &Down) {
    match down {
        Down::Open(open) => assert!(open.opening.text.iter().all(|token| (0..100).contains(token))),
        Down::Step(frame) => {
            let n = frame.step.rows.len();
            assert!((1..=4).contains(&n) && frame.step.tokens.len() == n && frame.hidden.len() == 2 * n);
            assert!(frame.hidden.iter().all(|value| value.is_finite()));
            assert!(frame.step.rows.iter().all(|row| row.seq.0 < 3 && row.pos < 8));
            assert!(frame.step.tokens.iter().all(|token| (0..100).contains(token)));
            if let Some((width, lists)) = &frame.top_k {
                assert_eq!(lists.len(), n * width);
                assert!(lists.iter().all(|position| (-1..8).contains(position)));
            }
        }
        Down::Truncate { seq, n_keep: n } | Down::Copy { to: seq, n_rows: n, .. } => assert!(seq.0 < 3 && *n <= 8),
        Down::Hello(_) | Down::Ping { .. } => {}
    }
}

fn check_up(up: &Up) {
    if let Up::Done(report) = up {
        for (seq, outcome) in &report.result.outcomes {
            assert!(seq.0 < 3);
            let picked = outcome.scored.iter().chain(&outcome.chosen);
            assert!(picked.clone().count() <= 4 && picked.clone().all(|token| (0..100).contains(&token.id)));
        }
    }
}
