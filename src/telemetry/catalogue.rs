//! Name, unit, help, labels and buckets of every metric, in one place.
//!
//! Buckets and label names are a contract with dashboards: changing one is a breaking change.

use metrics::Unit;

use super::labels::{
    Direction, DraftPosition, DraftingStopped, Endpoint, ErrorKind, FaultCode, Finish, KvKind, LinkConnect, LoadPhase,
    Method, PromptSource, Route, STATUS_CODES, StepPhase,
};
use crate::policy;

/// What a metric counts and how it is shown.
#[derive(Clone, Copy, Debug)]
pub struct MetricDef {
    /// Name as scraped, prefix included.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Base unit, when it has one.
    pub unit: Option<Unit>,
    /// One sentence for `# HELP`.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [LabelDef],
    /// When its series appear.
    pub children: Children,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows; starts at 0 with the process.
    Counter,
    /// A state.
    Gauge,
    /// A distribution over fixed upper edges.
    Histogram {
        /// Upper edges, ascending, without `+Inf`.
        buckets: &'static [f64],
    },
}

/// One label.
#[derive(Clone, Copy, Debug)]
pub struct LabelDef {
    /// Its name.
    pub name: &'static str,
    /// Every value it can take; empty when the value is fixed once at start (version, model id).
    pub values: &'static [&'static str],
}

/// When the series of a metric appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// Every combination of label values exists from the start, at zero.
    AtStart,
    /// The combinations that make sense exist from the start, others when they happen.
    Served,
    /// Exactly one series, set when its labels are known.
    Info,
}

const fn counter(name: &'static str, help: &'static str, labels: &'static [LabelDef]) -> MetricDef {
    MetricDef { name, kind: Kind::Counter, unit: None, help, labels, children: Children::AtStart }
}

const fn gauge(name: &'static str, help: &'static str, labels: &'static [LabelDef]) -> MetricDef {
    MetricDef { name, kind: Kind::Gauge, unit: None, help, labels, children: Children::AtStart }
}

const fn seconds(
    name: &'static str,
    help: &'static str,
    labels: &'static [LabelDef],
    buckets: &'static [f64],
) -> MetricDef {
    let kind = Kind::Histogram { buckets };
    MetricDef { name, kind, unit: Some(Unit::Seconds), help, labels, children: Children::AtStart }
}

const fn label(name: &'static str, values: &'static [&'static str]) -> LabelDef {
    LabelDef { name, values }
}

/// HTTP answers, by method, route and status.
pub const HTTP_REQUESTS: &str = "skippy_http_requests_total";
/// Time from request to the end of the body.
pub const HTTP_REQUEST_DURATION: &str = "skippy_http_request_duration_seconds";
/// HTTP requests whose body has not ended.
pub const HTTP_REQUESTS_IN_FLIGHT: &str = "skippy_http_requests_in_flight";
/// Error answers by kind.
pub const REQUEST_ERRORS: &str = "skippy_request_errors_total";
/// Requests that hold a lane.
pub const REQUESTS_IN_FLIGHT: &str = "skippy_requests_in_flight";
/// Requests that wait for a lane.
pub const REQUESTS_QUEUED: &str = "skippy_requests_queued";
/// Requests that ended.
pub const REQUESTS_FINISHED: &str = "skippy_requests_finished_total";
/// Prompt tokens.
pub const PROMPT_TOKENS: &str = "skippy_prompt_tokens_total";
/// Generated tokens.
pub const GENERATION_TOKENS: &str = "skippy_generation_tokens_total";
/// Time to first token.
pub const TIME_TO_FIRST_TOKEN: &str = "skippy_time_to_first_token_seconds";
/// Gap between tokens.
pub const INTER_TOKEN_LATENCY: &str = "skippy_inter_token_latency_seconds";
/// Whole request.
pub const REQUEST_DURATION: &str = "skippy_request_duration_seconds";
/// Wait for a lane.
pub const QUEUE_DURATION: &str = "skippy_queue_duration_seconds";
/// Prompt pass.
pub const PREFILL_DURATION: &str = "skippy_prefill_duration_seconds";
/// Token generation.
pub const DECODE_DURATION: &str = "skippy_decode_duration_seconds";
/// One forward pass.
pub const ENGINE_STEP: &str = "skippy_engine_step_seconds";
/// Rows of one forward pass.
pub const BATCH_ROWS: &str = "skippy_batch_rows";
/// One call of the draft head.
pub const DRAFT: &str = "skippy_draft_seconds";
/// Drafts verified.
pub const SPECULATION_DRAFTS: &str = "skippy_speculation_drafts_total";
/// Drafts accepted.
pub const SPECULATION_ACCEPTED: &str = "skippy_speculation_accepted_total";
/// Forward passes of requests that speculate.
pub const SPECULATION_FORWARDS: &str = "skippy_speculation_forwards_total";
/// Tokens of requests that speculate.
pub const SPECULATION_TOKENS: &str = "skippy_speculation_tokens_total";
/// Requests that stopped drafting.
pub const SPECULATION_STOPPED: &str = "skippy_speculation_stopped_total";
/// Searches for rows of earlier requests.
pub const PREFIX_CACHE_LOOKUPS: &str = "skippy_prefix_cache_lookups_total";
/// Those that found some.
pub const PREFIX_CACHE_HITS: &str = "skippy_prefix_cache_hits_total";
/// Saved prompts that had to go.
pub const PREFIX_CACHE_EVICTIONS: &str = "skippy_prefix_cache_evictions_total";
/// Host memory of saved prompts.
pub const PREFIX_CACHE_BYTES: &str = "skippy_prefix_cache_bytes";
/// KV rows kept by idle lanes.
pub const PREFIX_CACHE_KV_CELLS: &str = "skippy_prefix_cache_kv_cells";
/// KV rows in use.
pub const KV_CELLS_USED: &str = "skippy_kv_cells_used";
/// KV rows in all.
pub const KV_CELLS_CAPACITY: &str = "skippy_kv_cells_capacity";
/// Lanes in use.
pub const LANES_BUSY: &str = "skippy_lanes_busy";
/// Lanes in all.
pub const LANES_CAPACITY: &str = "skippy_lanes_capacity";
/// Experimental switches of the policy.
pub const EXPERIMENTAL_SWITCH: &str = "skippy_experimental_switch_open";
/// Decisions of the phase resolver.
pub const POLICY_DECISIONS: &str = "skippy_policy_decisions_total";
/// Masks that were not allocated.
pub const POLICY_DENSE_MASK_AVOIDED: &str = "skippy_policy_dense_mask_avoided_bytes_total";
/// Top-k lists across stage boundaries.
pub const INDEXSHARE_SIDEBAND: &str = "skippy_indexshare_sideband_bytes_total";
/// Whether there are links.
pub const LINK_UP: &str = "skippy_link_up";
/// Frames on links.
pub const LINK_FRAMES: &str = "skippy_link_frames_total";
/// Their bytes.
pub const LINK_BYTES: &str = "skippy_link_bytes_total";
/// Round trip of the link to the next stage.
pub const LINK_RTT: &str = "skippy_link_rtt_seconds";
/// Faults on links.
pub const LINK_FAULTS: &str = "skippy_link_faults_total";
/// Attempts to reach the next stage.
pub const LINK_CONNECTS: &str = "skippy_link_connects_total";
/// Time that the stage of this process computes.
pub const STAGE_BUSY: &str = "skippy_stage_busy_seconds";
/// Rows of the `dsa` engine's cache.
pub const KV_ROWS: &str = "skippy_kv_rows";
/// Start-up time.
pub const LOAD_DURATION: &str = "skippy_load_duration_seconds";
/// Silence of the engine thread.
pub const ENGINE_BEAT_AGE: &str = "skippy_engine_beat_age_seconds";
/// Whether new requests are welcome.
pub const READY: &str = "skippy_ready";
/// The model served.
pub const MODEL_INFO: &str = "skippy_model_info";
/// The build.
pub const BUILD_INFO: &str = "skippy_build_info";
/// Memory of the process; the usual name has no prefix.
pub const PROCESS_RESIDENT_MEMORY: &str = "process_resident_memory_bytes";
/// Start of the process; the usual name has no prefix.
pub const PROCESS_START_TIME: &str = "process_start_time_seconds";

/// Whole requests, queueing and prefill: up to half an hour, for long prompts over slow chains.
const REQUEST_EDGES: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
    1310.72, 2621.44,
];
/// Time to first token: fine below a second, then up to 2560 s.
const FIRST_TOKEN_EDGES: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Gaps between tokens and single forward passes.
const TOKEN_EDGES: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0,
    40.0, 80.0,
];
/// Calls of a draft head: a single layer, and the output matrix.
const DRAFT_EDGES: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Round trips between stages: from loopback to other continents.
const RTT_EDGES: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Rows of a batch: powers of two.
const ROW_EDGES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

/// All metrics.
pub const CATALOGUE: &[MetricDef] = &[
    MetricDef {
        name: HTTP_REQUESTS,
        kind: Kind::Counter,
        unit: None,
        help: "HTTP requests answered, by method, route pattern and status; 499 means the client left before the end.",
        labels: &[label("method", Method::VALUES), label("route", Route::VALUES), label("code", STATUS_CODES)],
        children: Children::Served,
    },
    MetricDef {
        name: HTTP_REQUEST_DURATION,
        kind: Kind::Histogram { buckets: REQUEST_EDGES },
        unit: Some(Unit::Seconds),
        help: "Time from the request to the end of the response body.",
        labels: &[label("method", Method::VALUES), label("route", Route::VALUES)],
        children: Children::Served,
    },
    gauge(HTTP_REQUESTS_IN_FLIGHT, "HTTP requests whose response body has not ended.", &[]),
    counter(
        REQUEST_ERRORS,
        "Error answers to clients, also those sent inside a stream.",
        &[label("class", ErrorKind::VALUES)],
    ),
    gauge(REQUESTS_IN_FLIGHT, "Generation requests that hold a lane.", &[]),
    gauge(REQUESTS_QUEUED, "Generation requests that wait for a lane.", &[]),
    counter(
        REQUESTS_FINISHED,
        "Generation requests that ended; every accepted request ends in exactly one reason.",
        &[label("endpoint", Endpoint::VALUES), label("finish_reason", Finish::VALUES)],
    ),
    counter(
        PROMPT_TOKENS,
        "Prompt tokens of requests, by whether they were computed or taken over from an earlier request.",
        &[label("source", PromptSource::VALUES)],
    ),
    counter(GENERATION_TOKENS, "Tokens generated.", &[]),
    seconds(
        TIME_TO_FIRST_TOKEN,
        "Time from acceptance of a request to its first generated token, queueing included.",
        &[],
        FIRST_TOKEN_EDGES,
    ),
    seconds(INTER_TOKEN_LATENCY, "Time between two generated tokens of one request.", &[], TOKEN_EDGES),
    seconds(REQUEST_DURATION, "Time from acceptance of a request to its last token.", &[], REQUEST_EDGES),
    seconds(QUEUE_DURATION, "Time a request waited for a lane.", &[], REQUEST_EDGES),
    seconds(PREFILL_DURATION, "Time from getting a lane to the first generated token.", &[], REQUEST_EDGES),
    seconds(DECODE_DURATION, "Time from the first to the last generated token of a request.", &[], REQUEST_EDGES),
    seconds(
        STAGE_BUSY,
        "Time that the layers of this process took for one step; what is left of the clock, they waited.",
        &[],
        TOKEN_EDGES,
    ),
    seconds(
        ENGINE_STEP,
        "Time of one forward pass through all stages, by what its rows were for.",
        &[label("phase", StepPhase::VALUES)],
        TOKEN_EDGES,
    ),
    MetricDef {
        name: BATCH_ROWS,
        kind: Kind::Histogram { buckets: ROW_EDGES },
        unit: Some(Unit::Count),
        help: "Rows in one forward pass.",
        labels: &[],
        children: Children::AtStart,
    },
    seconds(DRAFT, "Time of one call of the draft head, for all lanes that draft in the step.", &[], DRAFT_EDGES),
    counter(
        SPECULATION_DRAFTS,
        "Drafted tokens that were verified, by their place behind the token chosen last.",
        &[label("position", DraftPosition::VALUES)],
    ),
    counter(
        SPECULATION_ACCEPTED,
        "Drafted tokens that the model chose too.",
        &[label("position", DraftPosition::VALUES)],
    ),
    counter(
        SPECULATION_FORWARDS,
        "Forward passes past the prompt of requests that speculate, also after they stopped drafting; each request counts its own.",
        &[],
    ),
    counter(
        SPECULATION_TOKENS,
        "Tokens generated in those passes; divided by the passes, tokens per forward pass.",
        &[],
    ),
    counter(
        SPECULATION_STOPPED,
        "Requests that stopped drafting before their end.",
        &[label("reason", DraftingStopped::VALUES)],
    ),
    counter(PREFIX_CACHE_LOOKUPS, "Requests that could have begun with rows of others.", &[]),
    counter(PREFIX_CACHE_HITS, "Requests that have begun with rows of others.", &[]),
    counter(PREFIX_CACHE_EVICTIONS, "Saved prompts that had to leave host memory for others, or never fitted.", &[]),
    MetricDef {
        name: PREFIX_CACHE_BYTES,
        kind: Kind::Gauge,
        unit: Some(Unit::Bytes),
        help: "Host memory that holds rows of finished requests.",
        labels: &[],
        children: Children::AtStart,
    },
    gauge(PREFIX_CACHE_KV_CELLS, "KV cache rows that idle lanes keep for requests to come.", &[]),
    gauge(KV_CELLS_USED, "KV cache rows of running requests.", &[]),
    gauge(KV_CELLS_CAPACITY, "KV cache rows in all; every lane draws from them.", &[]),
    gauge(
        KV_ROWS,
        "Cache rows that hold a token in the dsa engine, each layer counted, by what they hold; 0 with the llama engine.",
        &[label("kind", KvKind::VALUES)],
    ),
    gauge(LANES_BUSY, "Lanes that work on a request.", &[]),
    gauge(LANES_CAPACITY, "Lanes in all.", &[]),
    MetricDef {
        name: POLICY_DECISIONS,
        kind: Kind::Counter,
        unit: None,
        help: "How attention ran: one decision for each sequence of each forward pass, with its reason.",
        labels: &[
            label("profile", policy::Profile::VALUES),
            label("phase", policy::Phase::VALUES),
            label("recommended", policy::Recommended::VALUES),
            label("selected", policy::Path::VALUES),
            label("reason", policy::Reason::VALUES),
        ],
        children: Children::Served,
    },
    MetricDef {
        name: POLICY_DENSE_MASK_AVOIDED,
        kind: Kind::Counter,
        unit: Some(Unit::Bytes),
        help: "Dense sparse-attention masks (tokens x KV rows x 4 bytes) that the selected paths did not allocate.",
        labels: &[label("phase", policy::Phase::VALUES)],
        children: Children::AtStart,
    },
    MetricDef {
        name: EXPERIMENTAL_SWITCH,
        kind: Kind::Gauge,
        unit: None,
        help: "1 for an experimental switch that is open, 0 for a closed one, with its reason; absent until the model is loaded.",
        labels: &[label("switch", policy::SWITCH_NAMES), label("reason", policy::Standing::VALUES)],
        children: Children::Served,
    },
    MetricDef {
        name: INDEXSHARE_SIDEBAND,
        kind: Kind::Counter,
        unit: Some(Unit::Bytes),
        help: "Top-k lists that crossed a stage boundary for shared layers (IndexShare), as this stage sees them.",
        labels: &[label("direction", Direction::VALUES)],
        children: Children::AtStart,
    },
    gauge(
        LINK_UP,
        "1 while there is a link from the stage before (in) or to the next one (out), else 0.",
        &[label("direction", Direction::VALUES)],
    ),
    counter(
        LINK_FRAMES,
        "Frames received (in) and sent (out) on links to other stages.",
        &[label("direction", Direction::VALUES)],
    ),
    MetricDef {
        name: LINK_BYTES,
        kind: Kind::Counter,
        unit: Some(Unit::Bytes),
        help: "Bytes of those frames, without what HTTP/2 and TLS add.",
        labels: &[label("direction", Direction::VALUES)],
        children: Children::AtStart,
    },
    seconds(LINK_RTT, "Round trip to the next stage and back, measured once a second.", &[], RTT_EDGES),
    counter(
        LINK_FAULTS,
        "Faults told or heard on links, by code; links lost without a word count as unavailable.",
        &[label("code", FaultCode::VALUES)],
    ),
    counter(
        LINK_CONNECTS,
        "Attempts to reach the next stage, by how they ended.",
        &[label("outcome", LinkConnect::VALUES)],
    ),
    MetricDef {
        name: LOAD_DURATION,
        kind: Kind::Gauge,
        unit: Some(Unit::Seconds),
        help: "Time the start of the server spent, by phase; 0 until the phase is over.",
        labels: &[label("phase", LoadPhase::VALUES)],
        children: Children::AtStart,
    },
    gauge(READY, "1 while new requests are welcome, as /readyz says, else 0.", &[]),
    MetricDef {
        name: ENGINE_BEAT_AGE,
        kind: Kind::Gauge,
        unit: Some(Unit::Seconds),
        help: "Time since the engine thread last showed life, as the watchdog sees it; 0 while there is no such thread.",
        labels: &[],
        children: Children::AtStart,
    },
    MetricDef {
        name: MODEL_INFO,
        kind: Kind::Gauge,
        unit: None,
        help: "The model served and the layers this stage owns; always 1, absent until the model is loaded.",
        labels: &[
            label("model", &[]),
            label("package_digest", &[]),
            label("architecture", &[]),
            label("layer_start", &[]),
            label("layer_end", &[]),
            label("abi", &[]),
        ],
        children: Children::Info,
    },
    MetricDef {
        name: BUILD_INFO,
        kind: Kind::Gauge,
        unit: None,
        help: "The build; always 1.",
        labels: &[label("version", &[]), label("git", &[]), label("llama", &[])],
        children: Children::Info,
    },
    MetricDef {
        name: PROCESS_RESIDENT_MEMORY,
        kind: Kind::Gauge,
        unit: Some(Unit::Bytes),
        help: "Memory of the process that is in RAM, mapped weights included; 0 where the system has no /proc.",
        labels: &[],
        children: Children::AtStart,
    },
    MetricDef {
        name: PROCESS_START_TIME,
        kind: Kind::Gauge,
        unit: Some(Unit::Seconds),
        help: "Start of the process in seconds since 1970-01-01 UTC.",
        labels: &[],
        children: Children::AtStart,
    },
];
