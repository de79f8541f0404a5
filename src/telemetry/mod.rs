//! Every metric of the server: names, help, labels and buckets in [`catalogue`], label values in [`labels`], and the
//! only functions that record in [`metrics`]. [`spans`] are for traces.
//!
//! [`install`] makes the process-wide recorder; the HTTP layer renders its [`PrometheusHandle`] at `/metrics`. Nothing
//! here listens on a port. `docs/metrics.md` is checked against the catalogue by a test.

pub mod catalogue;
pub mod labels;
pub mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod spans;

use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};

pub use metrics_exporter_prometheus::PrometheusHandle;

use self::catalogue::{CATALOGUE, Children, Kind, MetricDef};

/// How often [`PrometheusHandle::run_upkeep`] wants to be called: samples of a histogram wait in memory until then.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// Another recorder was installed first, or a histogram has no buckets.
    #[error("metrics recorder cannot be installed")]
    Recorder(#[from] BuildError),
}

/// Installs the recorder of this process, describes every metric and creates every label child that is known at start,
/// so that a scrape shows zeros. Later calls return the handle of the first.
///
/// # Errors
/// When somebody else has set a recorder for the `metrics` facade.
pub fn install() -> Result<PrometheusHandle, TelemetryError> {
    static HANDLE: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut handle = HANDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*handle {
        return Ok(handle.clone());
    }
    let installed = builder()?.install_recorder()?;
    register();
    Ok(handle.insert(installed).clone())
}

/// A recorder of its own, to be set with [`::metrics::with_local_recorder`]: tests count on it without seeing each other.
///
/// # Errors
/// When a histogram has no buckets.
pub fn local() -> Result<PrometheusRecorder, TelemetryError> {
    let recorder = builder()?.build_recorder();
    ::metrics::with_local_recorder(&recorder, register);
    Ok(recorder)
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for def in CATALOGUE {
        if let Kind::Histogram { buckets } = def.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(def.name.to_owned()), buckets)?;
        }
    }
    Ok(builder)
}

/// Descriptions, zero children and the values that never change, on the current recorder.
fn register() {
    for def in CATALOGUE {
        describe(def);
        if def.children == Children::AtStart {
            for labels in label_sets(def) {
                match def.kind {
                    Kind::Counter => ::metrics::counter!(def.name, &labels).increment(0),
                    Kind::Gauge => ::metrics::gauge!(def.name, &labels).set(0.0),
                    Kind::Histogram { .. } => drop(::metrics::histogram!(def.name, &labels)),
                }
            }
        }
    }
    metrics::register_http_routes();
    metrics::set_build_info();
    metrics::set_process_start(process_start().duration_since(UNIX_EPOCH).unwrap_or_default());
}

fn describe(def: &MetricDef) {
    match (def.kind, def.unit) {
        (Kind::Counter, Some(unit)) => ::metrics::describe_counter!(def.name, unit, def.help),
        (Kind::Counter, None) => ::metrics::describe_counter!(def.name, def.help),
        (Kind::Gauge, Some(unit)) => ::metrics::describe_gauge!(def.name, unit, def.help),
        (Kind::Gauge, None) => ::metrics::describe_gauge!(def.name, def.help),
        (Kind::Histogram { .. }, Some(unit)) => ::metrics::describe_histogram!(def.name, unit, def.help),
        (Kind::Histogram { .. }, None) => ::metrics::describe_histogram!(def.name, def.help),
    }
}

/// Every combination of the closed label values of `def`.
fn label_sets(def: &MetricDef) -> Vec<Vec<(&'static str, &'static str)>> {
    def.labels.iter().fold(vec![Vec::new()], |sets, label| {
        sets.iter()
            .flat_map(|set| {
                label.values.iter().map(move |value| {
                    let mut longer = set.clone();
                    longer.push((label.name, *value));
                    longer
                })
            })
            .collect()
    })
}

/// Close enough to `exec`: the moment the recorder was first asked for.
fn process_start() -> SystemTime {
    static START: OnceLock<SystemTime> = OnceLock::new();
    *START.get_or_init(SystemTime::now)
}

#[cfg(test)]
mod tests;
