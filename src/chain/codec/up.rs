//! Reports and faults.

use super::{FrameError, FrameLimits, check, pb};
use crate::{
    chain::{Fault, FaultCode, MAX_STAGES, StepReport, limits::MAX_FAULT_BYTES},
    pipeline::{Outcome, Picked, StepResult, TailError},
    stage::SeqId,
};

pub(super) fn report_to_message(report: StepReport) -> pb::Report {
    let outcome = |(seq, outcome): (SeqId, Outcome)| pb::Outcome {
        seq: seq.0,
        scored: outcome.scored.into_iter().map(picked_to_message).collect(),
        chosen: outcome.chosen.into_iter().map(picked_to_message).collect(),
        draft: outcome.draft.map(i32::cast_unsigned),
        no_guess: outcome.no_guess,
        fault: outcome.fault.map(|fault| cut(fault.to_string())),
    };
    pb::Report {
        ticket: report.result.ticket,
        outcomes: report.result.outcomes.into_iter().map(outcome).collect(),
        compute_us: report.compute_us,
    }
}

pub(super) fn report_from_message(message: pb::Report, limits: &FrameLimits) -> Result<StepReport, FrameError> {
    check::at_most("done.outcomes", "sequences", message.outcomes.len(), limits.n_seq_max as usize)?;
    check::at_most("done.compute_us", "stages", message.compute_us.len(), MAX_STAGES)?;
    let mut seen = vec![false; limits.n_seq_max as usize];
    let mut total = 0;
    let mut outcome = |(place, outcome): (usize, pb::Outcome)| {
        let field = |name: &str| format!("done.outcomes[{place}].{name}");
        let seq = outcome.seq;
        check::sequence(&field("seq"), seq, limits)?;
        if seen.get_mut(seq as usize).is_some_and(|seen| std::mem::replace(seen, true)) {
            return Err(FrameError::new(field("seq"), format!("{seq} again"), "each sequence once"));
        }
        total += outcome.scored.len() + outcome.chosen.len();
        check::at_most("done.outcomes", "tokens", total, limits.n_batch as usize)?;
        let picked = |name: &str, tokens: Vec<pb::Picked>| -> Result<Vec<Picked>, FrameError> {
            tokens.into_iter().map(|token| picked_from_message(&field(name), token, limits)).collect()
        };
        let outcome = Outcome {
            scored: picked("scored", outcome.scored)?,
            chosen: picked("chosen", outcome.chosen)?,
            draft: outcome.draft.map(|id| check::token(&field("draft"), id, limits)).transpose()?,
            no_guess: outcome.no_guess,
            fault: outcome.fault.map(|text| TailError::Remote(printable(text))),
        };
        Ok((SeqId(seq), outcome))
    };
    let outcomes = message.outcomes.into_iter().enumerate().map(&mut outcome).collect::<Result<_, _>>()?;
    let result = StepResult { ticket: message.ticket, outcomes };
    Ok(StepReport { result, compute_us: message.compute_us })
}

fn picked_to_message(picked: Picked) -> pb::Picked {
    let (top_ids, top_logprobs) = picked.top.iter().map(|&(id, logprob)| (id.cast_unsigned(), logprob)).unzip();
    pb::Picked { id: picked.id.cast_unsigned(), logprob: picked.logprob, top_ids, top_logprobs, over: picked.over }
}

fn picked_from_message(field: &str, picked: pb::Picked, limits: &FrameLimits) -> Result<Picked, FrameError> {
    check::at_most(field, "alternatives", picked.top_ids.len(), usize::from(u8::MAX))?;
    check::exactly(field, "log-probabilities of alternatives", picked.top_logprobs.len(), picked.top_ids.len())?;
    let logprobs = picked.logprob.iter().chain(&picked.top_logprobs);
    if let Some(bad) = logprobs.copied().find(|logprob| logprob.is_nan() || *logprob == f32::INFINITY) {
        return Err(FrameError::new(field, format!("log-probability {bad}"), "a number"));
    }
    let ids = check::tokens(field, picked.top_ids, limits)?;
    Ok(Picked {
        id: check::token(field, picked.id, limits)?,
        logprob: picked.logprob,
        top: ids.into_iter().zip(picked.top_logprobs).collect(),
        over: picked.over,
    })
}

pub(super) fn fault_to_message(fault: Fault) -> pb::Fault {
    let code = match fault.code {
        FaultCode::Refused => pb::FaultCode::Refused,
        FaultCode::Engine => pb::FaultCode::Engine,
        FaultCode::Unavailable => pb::FaultCode::Unavailable,
        FaultCode::Protocol => pb::FaultCode::Protocol,
        FaultCode::Draining => pb::FaultCode::Draining,
        FaultCode::Busy => pb::FaultCode::Busy,
        FaultCode::KvFull => pb::FaultCode::KvFull,
    };
    pb::Fault { stage: fault.stage, code: code.into(), text: cut(fault.text) }
}

pub(super) fn fault_from_message(fault: pb::Fault) -> Result<Fault, FrameError> {
    let code = match pb::FaultCode::try_from(fault.code) {
        Ok(pb::FaultCode::Refused) => FaultCode::Refused,
        Ok(pb::FaultCode::Engine) => FaultCode::Engine,
        Ok(pb::FaultCode::Unavailable) => FaultCode::Unavailable,
        Ok(pb::FaultCode::Protocol) => FaultCode::Protocol,
        Ok(pb::FaultCode::Draining) => FaultCode::Draining,
        Ok(pb::FaultCode::Busy) => FaultCode::Busy,
        Ok(pb::FaultCode::KvFull) => FaultCode::KvFull,
        Ok(pb::FaultCode::Unspecified) | Err(_) => return Err(check::unknown("fault.code", fault.code)),
    };
    check::at_most("fault.stage", "stages before it", fault.stage as usize, MAX_STAGES)?;
    Ok(Fault { stage: fault.stage, code, text: printable(fault.text) })
}

/// Text of a fault is wanted even when something is wrong with it.
fn printable(text: String) -> String {
    let text = cut(text);
    if text.chars().any(char::is_control) {
        return text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    }
    text
}

fn cut(mut text: String) -> String {
    let end = (0..=MAX_FAULT_BYTES.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    text.truncate(end.unwrap_or(0));
    text
}
