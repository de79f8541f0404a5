//! Openings.

use super::{FrameError, FrameLimits, check, pb};
use crate::{
    chain::{
        RemoteOpening,
        limits::{MAX_BIAS, MAX_GRAMMAR_BYTES},
    },
    grammar::GrammarSpec,
    pipeline::Opening,
    stage::SeqId,
    text::{MAX_DRY_BREAKERS, SamplingParams},
};

pub(super) fn to_message(RemoteOpening { opening, grammar }: RemoteOpening) -> pb::Opening {
    pb::Opening {
        seq: opening.seq.0,
        text: opening.text.into_iter().map(i32::cast_unsigned).collect(),
        prompt: opening.prompt,
        sampling: Some(sampling_to_message(opening.sampling)),
        grammar: grammar.map(|spec| pb::Grammar { spec: Some(grammar_to_message(spec)) }),
        ignore_eos: opening.ignore_eos,
        logprobs: opening.logprobs.map(u32::from),
        budget: opening.budget,
        kv_rows: opening.kv_rows,
    }
}

pub(super) fn from_message(message: pb::Opening, limits: &FrameLimits) -> Result<RemoteOpening, FrameError> {
    check::sequence("open.seq", message.seq, limits)?;
    // The token chosen last has no row yet.
    let longest = limits.n_ctx_seq as usize + 1;
    check::at_most("open.text", "tokens", message.text.len(), longest)?;
    check::at_most("open.prompt", "tokens", message.prompt as usize, message.text.len())?;
    check::at_most("open.kv_rows", "rows", message.kv_rows as usize, limits.n_ctx_seq as usize)?;
    let logprobs = message.logprobs.map(u8::try_from).transpose();
    let sampling = sampling_from_message(check::present("open.sampling", message.sampling)?, limits)?;
    let grammar = message.grammar.map(grammar_from_message).transpose()?;
    let opening = Opening {
        seq: SeqId(message.seq),
        text: check::tokens("open.text", message.text, limits)?,
        prompt: message.prompt,
        sampling,
        grammar: None,
        ignore_eos: message.ignore_eos,
        logprobs: logprobs.map_err(|_| FrameError::new("open.logprobs", "more", "at most 255 alternatives"))?,
        budget: message.budget,
        kv_rows: message.kv_rows,
    };
    Ok(RemoteOpening { opening, grammar })
}

fn sampling_to_message(params: SamplingParams) -> pb::Sampling {
    let (bias_tokens, bias_values) = params.logit_bias.iter().map(|&(id, bias)| (id.cast_unsigned(), bias)).unzip();
    pb::Sampling {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k.cast_unsigned(),
        min_p: params.min_p,
        typical_p: params.typical_p,
        seed: params.seed,
        repetition_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        bias_tokens,
        bias_values,
        dry_multiplier: params.dry_multiplier,
        dry_base: params.dry_base,
        dry_allowed_length: params.dry_allowed_length.cast_unsigned(),
        dry_penalty_last_n: params.dry_penalty_last_n,
        dry_sequence_breakers: params.dry_sequence_breakers,
        xtc_probability: params.xtc_probability,
        xtc_threshold: params.xtc_threshold,
    }
}

fn sampling_from_message(message: pb::Sampling, limits: &FrameLimits) -> Result<SamplingParams, FrameError> {
    check::at_most("open.sampling.bias_tokens", "entries", message.bias_tokens.len(), MAX_BIAS)?;
    let values = message.bias_values.len();
    check::exactly("open.sampling.bias_values", "entries", values, message.bias_tokens.len())?;
    let breakers = message.dry_sequence_breakers.len();
    check::at_most("open.sampling.dry_sequence_breakers", "texts", breakers, MAX_DRY_BREAKERS)?;
    let ids = check::tokens("open.sampling.bias_tokens", message.bias_tokens, limits)?;
    let params = SamplingParams {
        temperature: message.temperature,
        top_p: message.top_p,
        top_k: check::natural("open.sampling.top_k", message.top_k)?,
        min_p: message.min_p,
        typical_p: message.typical_p,
        seed: message.seed,
        repetition_penalty: message.repetition_penalty,
        presence_penalty: message.presence_penalty,
        frequency_penalty: message.frequency_penalty,
        logit_bias: ids.into_iter().zip(message.bias_values).collect(),
        dry_multiplier: message.dry_multiplier,
        dry_base: message.dry_base,
        dry_allowed_length: check::natural("open.sampling.dry_allowed_length", message.dry_allowed_length)?,
        dry_penalty_last_n: message.dry_penalty_last_n,
        dry_sequence_breakers: message.dry_sequence_breakers,
        xtc_probability: message.xtc_probability,
        xtc_threshold: message.xtc_threshold,
    };
    match params.validate(limits.token_end()) {
        Ok(()) => Ok(params),
        Err(error) => {
            let field = format!("open.sampling.{}", error.param);
            Err(FrameError::new(field, "out of range", format!("a value as for requests: it {}", error.message)))
        }
    }
}

fn grammar_to_message(spec: GrammarSpec) -> pb::grammar::Spec {
    use pb::grammar::Spec;
    match spec {
        GrammarSpec::JsonObject => Spec::JsonObject(true),
        GrammarSpec::JsonSchema(schema) => Spec::JsonSchema(schema.to_string()),
        GrammarSpec::Text(text) => Spec::Text(text),
        GrammarSpec::Regex(regex) => Spec::Regex(regex),
        GrammarSpec::Lark(lark) => Spec::Lark(lark),
    }
}

fn grammar_from_message(message: pb::Grammar) -> Result<GrammarSpec, FrameError> {
    use pb::grammar::Spec;
    let bounded = |field: &str, text: String| {
        check::at_most(field, "bytes", text.len(), MAX_GRAMMAR_BYTES)?;
        Ok(text)
    };
    Ok(match check::present("open.grammar", message.spec)? {
        Spec::JsonObject(true) => GrammarSpec::JsonObject,
        Spec::JsonObject(false) => return Err(FrameError::new("open.grammar.json_object", false, true)),
        Spec::JsonSchema(schema) => {
            let schema = bounded("open.grammar.json_schema", schema)?;
            let malformed = |error| FrameError::new("open.grammar.json_schema", error, "JSON");
            GrammarSpec::JsonSchema(serde_json::from_str(&schema).map_err(malformed)?)
        }
        Spec::Text(text) => GrammarSpec::Text(bounded("open.grammar.text", text)?),
        Spec::Regex(regex) => GrammarSpec::Regex(bounded("open.grammar.regex", regex)?),
        Spec::Lark(lark) => GrammarSpec::Lark(bounded("open.grammar.lark", lark)?),
    })
}
