//! `POST /v1/completions`.
//!
//! [`fields`] lists what a request may hold, [`types`] parses it, [`validate`](mod@validate) checks it, [`convert`]
//! makes generations of it, and this file or `stream` answers.

pub mod convert;
pub mod fields;
mod stream;
pub mod types;
pub mod validate;

use std::{
    collections::VecDeque,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};

use self::{
    convert::{Output, Planned},
    stream::{Frames, Lane},
    types::{Choice, Completion, CompletionRequest, Logprobs},
};
use crate::{
    http::{
        AppState,
        error::ApiError,
        extract::ApiJson,
        middleware::{
            access_log::{Fields, LogFields},
            request_id::RequestId,
        },
        policy, sse,
    },
    serve::{Event, ModelCard, ServeError, Usage},
    telemetry::metrics::VERSION,
};

/// The handler.
pub(in crate::http) async fn create(
    State(state): State<AppState>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Extension(log): Extension<LogFields>,
    ApiJson(request): ApiJson<CompletionRequest>,
) -> Result<Response, ApiError> {
    let loaded = state.loaded()?;
    state.unknown_fields().warn("completions", &request.unknown);
    if let Some(options) = &request.stream_options {
        state.unknown_fields().warn("completions.stream_options", &options.unknown);
    }
    let valid = validate::validate(request, &loaded.card.id, loaded.text.n_vocab())?;
    if valid.attention_path.is_some() && loaded.card.policy.is_none() {
        return Err(ApiError::unsupported("attention_path", format!("`attention_path`: {}", policy::FIXED)));
    }
    log.update(|fields| {
        fields.stream = valid.stream;
        fields.user.clone_from(&valid.user);
    });
    let planned = convert::plan(&valid, &loaded.text, loaded.card.n_ctx, &request_id).await?;
    // When one of several is refused, the receivers of the others are dropped: none of them runs.
    let mut lanes: Vec<Lane> =
        (0..).zip(planned).map(|(index, plan)| submit(&state, index, plan)).collect::<Result<_, _>>()?;
    let head = Head::new(&loaded.card);
    if !valid.stream {
        return answer(head, lanes, &log).await;
    }
    // The head of the response waits for the first lane, so that early failures are plain HTTP errors.
    if let Some(lane) = lanes.first_mut() {
        match lane.events.recv().await {
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(event) => lane.seen.push_back(event),
            None => return Err(let_go()),
        }
    }
    Ok(sse::response(Frames::new(head, lanes, valid.include_usage, state.options().keep_alive, log)))
}

fn submit(state: &AppState, index: u32, plan: Planned) -> Result<Lane, ApiError> {
    let Planned { request, assembler, counts_prompt } = plan;
    let events = state.serve().submit(request)?;
    Ok(Lane { index, assembler, counts_prompt, events, seen: VecDeque::new() })
}

/// The whole answer in one piece.
async fn answer(head: Head, lanes: Vec<Lane>, log: &LogFields) -> Result<Response, ApiError> {
    let mut choices = Vec::new();
    let mut tally = Tally::default();
    let mut last_timings = None;
    for mut lane in lanes {
        let logprobs = lane.assembler.wants_logprobs().then(Logprobs::default);
        let mut choice = Choice { text: String::new(), index: lane.index, logprobs, finish_reason: None };
        while choice.finish_reason.is_none() {
            let event = lane.events.recv().await.ok_or_else(let_go)?;
            match lane.assembler.take(event) {
                Output::Nothing => {}
                Output::Piece(text, logprobs) => {
                    choice.text.push_str(&text);
                    if let (Some(all), Some(more)) = (&mut choice.logprobs, logprobs) {
                        all.extend(more);
                    }
                }
                Output::Done(reason, usage, timings) => {
                    choice.finish_reason = Some(reason.label());
                    tally.finish_reason = Some(reason.label());
                    tally.add(usage, lane.counts_prompt);
                    last_timings = Some(timings.into());
                }
                Output::Failed(error) => return Err(error),
            }
        }
        choices.push(choice);
    }
    log.update(|fields| tally.note(fields));
    let timings = last_timings.filter(|_| choices.len() == 1);
    let usage = Some(Some(tally.usage.into()));
    Ok(Json(Completion { choices, usage, timings, ..head.empty() }).into_response())
}

fn let_go() -> ApiError {
    ServeError::Engine("the request was let go without an answer".to_owned()).into()
}

/// What all chunks of an answer have in common.
struct Head {
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
}

impl Head {
    fn new(card: &ModelCard) -> Self {
        let digest: String = card.package_digest.chars().take(12).collect();
        Self {
            id: format!("cmpl-{}", uuid::Uuid::new_v4().simple()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            model: card.id.clone(),
            system_fingerprint: format!("skippy-{VERSION}-{digest}"),
        }
    }

    fn empty(&self) -> Completion<'_> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.system_fingerprint,
            choices: Vec::new(),
            usage: None,
            timings: None,
        }
    }
}

/// Usage of all choices together.
#[derive(Debug, Default)]
struct Tally {
    usage: Usage,
    finish_reason: Option<&'static str>,
}

impl Tally {
    fn add(&mut self, usage: Usage, counts_prompt: bool) {
        if counts_prompt {
            self.usage.prompt_tokens += usage.prompt_tokens;
            self.usage.cached_tokens += usage.cached_tokens;
        }
        self.usage.completion_tokens += usage.completion_tokens;
    }

    fn note(&self, fields: &mut Fields) {
        fields.prompt_tokens = self.usage.prompt_tokens;
        fields.completion_tokens = self.usage.completion_tokens;
        fields.finish_reason = self.finish_reason;
    }
}

impl Logprobs {
    fn extend(&mut self, more: Self) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}
