//! Steps.

use super::{FrameError, FrameLimits, check, pb};
use crate::{
    chain::{StepFrame, WireDtype, limits::MAX_TOP_K, wire},
    pipeline::Step,
    policy,
    stage::{Purpose, Row, SeqId, Span},
};

pub(super) fn to_message(frame: StepFrame, wire: WireDtype) -> Result<pb::Step, FrameError> {
    let StepFrame { step, hidden, top_k } = frame;
    Ok(pb::Step {
        ticket: step.ticket,
        tokens: step.tokens.into_iter().map(i32::cast_unsigned).collect(),
        rows: step.rows.chunk_by(follows).map(run_to_message).collect(),
        spans: step.spans.into_iter().map(span_to_message).collect(),
        hidden: wire.encode(&hidden)?,
        top_k: top_k.map(|(width, lists)| pb::TopK {
            width: u32::try_from(width).unwrap_or(u32::MAX),
            lists: wire::encode_positions(&lists),
        }),
    })
}

pub(super) fn from_message(message: pb::Step, limits: &FrameLimits) -> Result<StepFrame, FrameError> {
    let rows = rows_from_message(&message.rows, limits)?;
    check::exactly("step.tokens", "tokens", message.tokens.len(), rows.len())?;
    let width = (limits.n_embd as usize).saturating_mul(limits.wire.size());
    check::exactly("step.hidden", "bytes", message.hidden.len(), rows.len().saturating_mul(width))?;
    let top_k = message.top_k.map(|lists| top_k_from_message(&lists, &rows)).transpose()?;
    let step = Step {
        ticket: message.ticket,
        tokens: check::tokens("step.tokens", message.tokens, limits)?,
        spans: spans_from_message(message.spans, &message.rows, limits)?,
        rows,
    };
    Ok(StepFrame { step, hidden: limits.wire.decode(&message.hidden)?, top_k })
}

fn follows(row: &Row, next: &Row) -> bool {
    row.seq == next.seq && row.pos.checked_add(1) == Some(next.pos)
}

fn run_to_message(run: &[Row]) -> pb::Rows {
    let mut outputs = Vec::new();
    if run.iter().any(|row| row.output) {
        let byte = |rows: &[Row]| rows.iter().rev().fold(0, |byte, row| byte << 1 | u8::from(row.output));
        outputs.extend(run.chunks(8).map(byte));
    }
    let first = run.first();
    pb::Rows {
        seq: first.map_or(0, |row| row.seq.0),
        pos: first.map_or(0, |row| row.pos),
        n: u32::try_from(run.len()).unwrap_or(u32::MAX),
        outputs: outputs.into(),
    }
}

fn rows_from_message(runs: &[pb::Rows], limits: &FrameLimits) -> Result<Vec<Row>, FrameError> {
    check::at_most("step.rows", "sequences", runs.len(), limits.n_seq_max as usize)?;
    let mut seen = vec![false; limits.n_seq_max as usize];
    let mut total = 0_usize;
    for (place, run) in runs.iter().enumerate() {
        let field = |name: &str| format!("step.rows[{place}].{name}");
        check::sequence(&field("seq"), run.seq, limits)?;
        if let Some(seen) = seen.get_mut(run.seq as usize)
            && std::mem::replace(seen, true)
        {
            let expected = "each sequence once, its rows side by side and their positions one behind another";
            return Err(FrameError::new(field("seq"), format!("{} again", run.seq), expected));
        }
        if run.n == 0 {
            return Err(FrameError::new(field("n"), 0, "at least 1"));
        }
        let end = run.pos as usize + run.n as usize;
        check::at_most(&field("pos"), "rows with those of the step", end, limits.n_ctx_seq as usize)?;
        total = total.saturating_add(run.n as usize);
        check_outputs(&field("outputs"), run)?;
    }
    check::at_most("step.rows", "rows", total, limits.n_batch as usize)?;
    if total == 0 {
        return Err(FrameError::new("step.rows", "empty", "at least 1 row"));
    }
    let mut rows = Vec::with_capacity(total);
    for run in runs {
        let output = |i: u32| run.outputs.get(i as usize / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1);
        rows.extend((0..run.n).map(|i| Row { seq: SeqId(run.seq), pos: run.pos + i, output: output(i) }));
    }
    Ok(rows)
}

fn check_outputs(field: &str, run: &pb::Rows) -> Result<(), FrameError> {
    let Some(last) = run.outputs.last() else { return Ok(()) };
    check::exactly(field, "bytes", run.outputs.len(), run.n.div_ceil(8) as usize)?;
    let used = (run.n - 1) % 8 + 1;
    if u32::from(*last) >> used != 0 {
        return Err(FrameError::new(field, format!("a byte {last:#04x} at the end"), "no bits behind the last row"));
    }
    Ok(())
}

fn span_to_message(span: Span) -> pb::Span {
    let path = match span.path {
        None => pb::Path::Unspecified,
        Some(policy::Path::Dense) => pb::Path::Dense,
        Some(policy::Path::DirectSparse) => pb::Path::DirectSparse,
        Some(policy::Path::CompactFlash) => pb::Path::CompactFlash,
        Some(policy::Path::SparseChunked) => pb::Path::SparseChunked,
        Some(policy::Path::Fallback) => pb::Path::Fallback,
    };
    let purpose = match span.purpose {
        Purpose::Prefill { prompt } => pb::span::Purpose::Prefill(prompt),
        Purpose::Decode => pb::span::Purpose::Decode(true),
        Purpose::Verify => pb::span::Purpose::Verify(true),
    };
    pb::Span { seq: span.seq.0, purpose: Some(purpose), path: path.into(), drafts: span.drafts }
}

fn spans_from_message(spans: Vec<pb::Span>, runs: &[pb::Rows], limits: &FrameLimits) -> Result<Vec<Span>, FrameError> {
    check::at_most("step.spans", "spans", spans.len(), runs.len())?;
    let mut open = vec![false; limits.n_seq_max as usize];
    for run in runs {
        open.get_mut(run.seq as usize).into_iter().for_each(|open| *open = true);
    }
    let mut span = |(place, span): (usize, pb::Span)| {
        let field = |name: &str| format!("step.spans[{place}].{name}");
        let has_rows = open.get_mut(span.seq as usize).is_some_and(std::mem::take);
        if !has_rows {
            return Err(FrameError::new(field("seq"), span.seq, "a sequence with rows in the step, once"));
        }
        span_from_message(span, field)
    };
    spans.into_iter().enumerate().map(&mut span).collect()
}

fn span_from_message(span: pb::Span, field: impl Fn(&str) -> String) -> Result<Span, FrameError> {
    use pb::span::Purpose as Wire;
    let purpose = match check::present(&field("purpose"), span.purpose)? {
        Wire::Prefill(prompt) => Purpose::Prefill { prompt },
        Wire::Decode(true) => Purpose::Decode,
        Wire::Verify(true) => Purpose::Verify,
        Wire::Decode(false) | Wire::Verify(false) => return Err(FrameError::new(field("purpose"), false, true)),
    };
    let path = match pb::Path::try_from(span.path) {
        Ok(pb::Path::Unspecified) => None,
        Ok(pb::Path::Dense) => Some(policy::Path::Dense),
        Ok(pb::Path::DirectSparse) => Some(policy::Path::DirectSparse),
        Ok(pb::Path::CompactFlash) => Some(policy::Path::CompactFlash),
        Ok(pb::Path::SparseChunked) => Some(policy::Path::SparseChunked),
        Ok(pb::Path::Fallback) => Some(policy::Path::Fallback),
        Err(_) => return Err(check::unknown(&field("path"), span.path)),
    };
    Ok(Span { seq: SeqId(span.seq), purpose, path, drafts: span.drafts })
}

fn top_k_from_message(message: &pb::TopK, rows: &[Row]) -> Result<(usize, Vec<i32>), FrameError> {
    if message.width == 0 || message.width > MAX_TOP_K {
        return Err(FrameError::new("step.top_k.width", message.width, format!("1..={MAX_TOP_K}")));
    }
    let width = message.width as usize;
    check::exactly("step.top_k.lists", "bytes", message.lists.len(), rows.len().saturating_mul(width * 4))?;
    let lists = wire::decode_positions(&message.lists);
    for (place, (list, row)) in lists.chunks_exact(width).zip(rows).enumerate() {
        let used = list.iter().position(|&position| position == -1).unwrap_or(width);
        let (used, rest) = list.split_at(used);
        let ascending = used.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
        let visible = used.first().is_none_or(|&first| first >= 0)
            && used.last().is_none_or(|&last| u32::try_from(last).is_ok_and(|last| last <= row.pos));
        if !ascending || !visible || rest.iter().any(|&position| position != -1) {
            let expected = format!("ascending positions up to {}, then -1", row.pos);
            return Err(FrameError::new(format!("step.top_k.lists[{place}]"), shown(list), expected));
        }
    }
    Ok((width, lists))
}

/// The beginning and the end of a list.
fn shown(list: &[i32]) -> String {
    match list {
        [a, b, c, .., y, z] => format!("[{a}, {b}, {c}, .., {y}, {z}]"),
        _ => format!("{list:?}"),
    }
}
