//! The only functions that record. Callers pass types; names and labels stay in [`super::catalogue`].
//!
//! All are cheap (one hash lookup and one atomic) and never block; without an installed recorder they do nothing.

use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};

use super::{
    catalogue as names,
    labels::{
        Direction, DraftPosition, DraftingStopped, Endpoint, ErrorKind, FaultCode, Finish, KvKind, LinkConnect,
        LoadPhase, Method, PromptSource, Route, StepPhase, status_code,
    },
};
pub use crate::build_info::{GIT, LLAMA, VERSION};
use crate::{
    package::generation::Vocabulary as _,
    policy::{Decision, Profile, SwitchState},
};

/// Requests that hold a lane and requests that wait for one, as the scheduler sees them now.
pub fn set_requests(in_flight: usize, queued: usize) {
    gauge!(names::REQUESTS_IN_FLIGHT).set(in_flight as f64);
    gauge!(names::REQUESTS_QUEUED).set(queued as f64);
}

/// Lanes in use and in all.
pub fn set_lanes(busy: usize, capacity: usize) {
    gauge!(names::LANES_BUSY).set(busy as f64);
    gauge!(names::LANES_CAPACITY).set(capacity as f64);
}

/// KV rows in use and in all.
pub fn set_kv_cells(used: usize, capacity: usize) {
    gauge!(names::KV_CELLS_USED).set(used as f64);
    gauge!(names::KV_CELLS_CAPACITY).set(capacity as f64);
}

/// A request could have made use of rows of others, and has or has not found some.
pub fn prefix_looked_up(hit: bool) {
    counter!(names::PREFIX_CACHE_LOOKUPS).increment(1);
    counter!(names::PREFIX_CACHE_HITS).increment(u64::from(hit));
}

/// Saved prompts have left host memory for want of room.
pub fn prefixes_evicted(count: u64) {
    counter!(names::PREFIX_CACHE_EVICTIONS).increment(count);
}

/// What is kept for requests to come: bytes of host memory, and KV rows of idle lanes.
pub fn set_prefix_cache(bytes: u64, kv_rows: u32) {
    gauge!(names::PREFIX_CACHE_BYTES).set(bytes as f64);
    gauge!(names::PREFIX_CACHE_KV_CELLS).set(kv_rows);
}

/// A forward pass over `rows` rows is over.
pub fn engine_step(phase: StepPhase, rows: usize, took: Duration) {
    histogram!(names::ENGINE_STEP, "phase" => phase.label()).record(took);
    histogram!(names::BATCH_ROWS).record(rows as f64);
}

/// A call of the draft head is over.
pub fn drafted(took: Duration) {
    histogram!(names::DRAFT).record(took);
}

/// The model has chosen a token where a draft stood.
pub fn draft_verified(position: DraftPosition, accepted: bool) {
    counter!(names::SPECULATION_DRAFTS, "position" => position.label()).increment(1);
    counter!(names::SPECULATION_ACCEPTED, "position" => position.label()).increment(u64::from(accepted));
}

/// A pass past the prompt of a request that speculates has given `tokens` tokens.
pub fn speculating_forward(tokens: u32) {
    counter!(names::SPECULATION_FORWARDS).increment(1);
    counter!(names::SPECULATION_TOKENS).increment(u64::from(tokens));
}

/// A request has stopped drafting before its end.
pub fn drafting_stopped(reason: DraftingStopped) {
    counter!(names::SPECULATION_STOPPED, "reason" => reason.label()).increment(1);
}

/// A request has got its lane after waiting for `waited`.
pub fn request_admitted(waited: Duration) {
    histogram!(names::QUEUE_DURATION).record(waited);
}

/// The prompt of a request is through: `tokens` of it came from `source`.
pub fn prompt_tokens(source: PromptSource, tokens: u64) {
    counter!(names::PROMPT_TOKENS, "source" => source.label()).increment(tokens);
}

/// The first token of a request came `since_submit` after its acceptance and `since_lane` after it got its lane.
pub fn first_token(since_submit: Duration, since_lane: Duration) {
    histogram!(names::TIME_TO_FIRST_TOKEN).record(since_submit);
    histogram!(names::PREFILL_DURATION).record(since_lane);
    counter!(names::GENERATION_TOKENS).increment(1);
}

/// A further token came `gap` after the one before.
pub fn next_token(gap: Duration) {
    histogram!(names::INTER_TOKEN_LATENCY).record(gap);
    counter!(names::GENERATION_TOKENS).increment(1);
}

/// An accepted request has ended `since_submit` after its acceptance; `decoding` is the time from its first to its last
/// token, when it had one.
pub fn request_finished(endpoint: Endpoint, finish: Finish, since_submit: Duration, decoding: Option<Duration>) {
    counter!(names::REQUESTS_FINISHED, "endpoint" => endpoint.label(), "finish_reason" => finish.label()).increment(1);
    histogram!(names::REQUEST_DURATION).record(since_submit);
    if let Some(decoding) = decoding {
        histogram!(names::DECODE_DURATION).record(decoding);
    }
}

/// A client was told of an error.
pub fn request_error(kind: ErrorKind) {
    counter!(names::REQUEST_ERRORS, "class" => kind.label()).increment(1);
}

/// The phase resolver has decided for one sequence of one forward pass, under a package of `profile`.
pub fn policy_decision(profile: Profile, decision: &Decision) {
    let phase = decision.phase.label();
    counter!(
        names::POLICY_DECISIONS,
        "profile" => profile.label(),
        "phase" => phase,
        "recommended" => decision.recommended.label(),
        "selected" => decision.selected.label(),
        "reason" => decision.reason.label(),
    )
    .increment(1);
    if decision.dense_mask_avoided_bytes > 0 {
        counter!(names::POLICY_DENSE_MASK_AVOIDED, "phase" => phase).increment(decision.dense_mask_avoided_bytes);
    }
}

/// An experimental switch of the loaded package stands so. To be called once for each.
pub fn experimental_switch(state: &SwitchState) {
    let reason = state.standing().label();
    gauge!(names::EXPERIMENTAL_SWITCH, "switch" => state.switch.name(), "reason" => reason).set(if state.open {
        1.0
    } else {
        0.0
    });
}

/// `bytes` of top-k lists have crossed a boundary of this stage.
pub fn indexshare_sideband(direction: Direction, bytes: u64) {
    counter!(names::INDEXSHARE_SIDEBAND, "direction" => direction.label()).increment(bytes);
}

/// A frame of `bytes` has come or gone on a link.
pub fn link_frame(direction: Direction, bytes: usize) {
    counter!(names::LINK_FRAMES, "direction" => direction.label()).increment(1);
    counter!(names::LINK_BYTES, "direction" => direction.label()).increment(bytes as u64);
}

/// The next stage has answered a ping after `took`.
pub fn link_rtt(took: Duration) {
    histogram!(names::LINK_RTT).record(took);
}

/// A fault was told or heard on a link.
pub fn link_fault(code: FaultCode) {
    counter!(names::LINK_FAULTS, "code" => code.label()).increment(1);
}

/// An attempt to reach the next stage has ended.
pub fn link_connect(outcome: LinkConnect) {
    counter!(names::LINK_CONNECTS, "outcome" => outcome.label()).increment(1);
}

/// The layers of this process took so long for a step.
pub fn stage_busy(took: Duration) {
    histogram!(names::STAGE_BUSY).record(took);
}

/// There is a link, until this is dropped.
#[derive(Debug)]
pub struct LinkUp(Direction);

impl LinkUp {
    /// There is one from now on.
    pub fn new(direction: Direction) -> Self {
        gauge!(names::LINK_UP, "direction" => direction.label()).increment(1.0);
        Self(direction)
    }
}

impl Drop for LinkUp {
    fn drop(&mut self) {
        gauge!(names::LINK_UP, "direction" => self.0.label()).decrement(1.0);
    }
}

/// The rows that a stage holds have changed by `change`.
pub fn kv_rows(kind: KvKind, change: i64) {
    if change != 0 {
        gauge!(names::KV_ROWS, "kind" => kind.label()).increment(change as f64);
    }
}

/// A phase of the start is over.
pub fn load_finished(phase: LoadPhase, took: Duration) {
    gauge!(names::LOAD_DURATION, "phase" => phase.label()).set(took);
}

/// What a scrape finds that nobody tells: whether requests are welcome, the silence of the engine thread, and the memory
/// of this process.
pub fn set_health(ready: bool, beat_age: Option<Duration>) {
    gauge!(names::READY).set(if ready { 1.0 } else { 0.0 });
    gauge!(names::ENGINE_BEAT_AGE).set(beat_age.unwrap_or_default());
    gauge!(names::PROCESS_RESIDENT_MEMORY).set(resident_bytes().unwrap_or(0) as f64);
}

/// `VmRSS` of `/proc/self/status`, which is in KiB.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What `skippy_model_info` says.
#[derive(Clone, Debug)]
pub struct ModelInfo<'a> {
    /// Model id.
    pub model: &'a str,
    /// SHA-256 of the package manifest.
    pub package_digest: &'a str,
    /// `general.architecture`.
    pub architecture: &'a str,
    /// First layer owned.
    pub layer_start: u32,
    /// One past the last layer owned.
    pub layer_end: u32,
    /// ABI of the package.
    pub abi: &'a str,
}

/// The model is loaded. To be called once.
pub fn set_model_info(info: &ModelInfo<'_>) {
    let labels = [
        ("model", info.model.to_owned()),
        ("package_digest", info.package_digest.to_owned()),
        ("architecture", info.architecture.to_owned()),
        ("layer_start", info.layer_start.to_string()),
        ("layer_end", info.layer_end.to_string()),
        ("abi", info.abi.to_owned()),
    ];
    gauge!(names::MODEL_INFO, &labels).set(1.0);
}

/// One HTTP request, from its head to the end of the response body. Records when dropped.
#[derive(Debug)]
pub struct HttpRequest {
    method: Method,
    route: Route,
    started: Instant,
    /// `None` until the response head is made: then the client has left.
    code: Option<u16>,
    body_ended: bool,
}

impl HttpRequest {
    /// A request has come.
    pub fn start(method: Method, route: Route) -> Self {
        gauge!(names::HTTP_REQUESTS_IN_FLIGHT).increment(1.0);
        Self { method, route, started: Instant::now(), code: None, body_ended: false }
    }

    /// The head of the response is made.
    pub fn responded(&mut self, code: u16) {
        self.code = Some(code);
    }

    /// The last byte of the body was handed out.
    pub fn body_ended(&mut self) {
        self.body_ended = true;
    }

    /// Status to account for: a body that is dropped before its end means that the client has left.
    pub fn code(&self) -> u16 {
        match self.code {
            Some(code) if self.body_ended => code,
            _ => 499,
        }
    }

    /// Time since the request came.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        let (method, route) = (self.method.label(), self.route.label());
        gauge!(names::HTTP_REQUESTS_IN_FLIGHT).decrement(1.0);
        counter!(names::HTTP_REQUESTS, "method" => method, "route" => route, "code" => status_code(self.code()))
            .increment(1);
        histogram!(names::HTTP_REQUEST_DURATION, "method" => method, "route" => route).record(self.elapsed());
    }
}

/// The routes that are served, each with its method and status 200, show zeros from the start.
pub(super) fn register_http_routes() {
    for route in Route::ALL {
        let method = match route {
            Route::Completions
            | Route::ChatCompletions
            | Route::Tokenize
            | Route::Detokenize
            | Route::PolicyExplain => Method::Post.label(),
            Route::Models | Route::Model | Route::Chain | Route::Policy | Route::OpenApi => Method::Get.label(),
            Route::Unsupported | Route::Unmatched => continue,
        };
        counter!(names::HTTP_REQUESTS, "method" => method, "route" => route.label(), "code" => "200").increment(0);
        drop(histogram!(names::HTTP_REQUEST_DURATION, "method" => method, "route" => route.label()));
    }
}

pub(super) fn set_build_info() {
    gauge!(names::BUILD_INFO, "version" => VERSION, "git" => GIT, "llama" => LLAMA).set(1.0);
}

pub(super) fn set_process_start(since_epoch: Duration) {
    gauge!(names::PROCESS_START_TIME).set(since_epoch);
}
