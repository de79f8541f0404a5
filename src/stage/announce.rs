//! Tells of the resolver's decisions: one structured event and the counters for each.

use crate::{
    package::generation::Vocabulary as _,
    policy::{Decision, Inputs, Phase, Reason, Resolver},
    telemetry::metrics,
};

const _: () = assert!(Reason::ALL.len() <= 32, "a reason is a bit");

/// Remembers which departures have been told, so that each is told aloud once.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    /// A set of [`Reason`]s for each phase.
    told: [u32; Phase::ALL.len()],
}

impl Announcer {
    /// Counts `decision` and logs it with everything that it was made from: at `debug`, and at `info` when it departs from
    /// what was asked for, the first time for its phase and reason.
    ///
    /// For every sequence of every forward pass: without a listener at `debug` it costs two counters.
    pub fn tell(&mut self, resolver: &Resolver, inputs: &Inputs, decision: &Decision) {
        metrics::policy_decision(resolver.profile(), decision);
        let threshold = decision.threshold();
        macro_rules! event {
            ($level:ident) => {
                tracing::$level!(
                    target: "skippy::policy",
                    profile = resolver.profile().label(),
                    phase = decision.phase.label(),
                    backend = resolver.capability().backend.label(),
                    n_tokens = inputs.n_tokens,
                    n_kv = inputs.n_kv,
                    top_k = resolver.top_k(),
                    indexshare_role = resolver.role().label(),
                    recommended = decision.recommended.label(),
                    selected = decision.selected.label(),
                    rejected = decision.rejected.map(|path| path.label()),
                    reason = decision.reason.label(),
                    refused = decision.refused,
                    threshold = threshold.map(|threshold| threshold.label()),
                    threshold_value = threshold.map(|threshold| resolver.limit(threshold).value),
                    dense_mask_bytes = decision.dense_mask_bytes,
                    dense_mask_avoided_bytes = decision.dense_mask_avoided_bytes,
                    "attention path"
                )
            };
        }
        if decision.departs() && self.is_news(decision) {
            event!(info);
        } else {
            event!(debug);
        }
    }

    fn is_news(&mut self, decision: &Decision) -> bool {
        let Some(told) = self.told.get_mut(decision.phase as usize) else { return false };
        let reason = 1 << decision.reason as u32;
        let news = *told & reason == 0;
        *told |= reason;
        news
    }
}

/// Tells once, when a stage is loaded, how the experimental switches stand: one line for each that the package declares,
/// and the gauge for all. What makes the evidence foreign is told beside it.
pub fn announce_switches(resolver: &Resolver) {
    for difference in resolver.evidence().into_iter().flat_map(|exhibit| exhibit.differences()) {
        tracing::warn!(
            target: "skippy::policy::switches",
            field = difference.field,
            measured = difference.measured,
            here = difference.here,
            "the evidence was measured elsewhere"
        );
    }
    for state in resolver.switches() {
        metrics::experimental_switch(state);
        if state.declared.is_some() {
            tracing::info!(
                target: "skippy::policy::switches",
                switch = state.switch.name(),
                open = state.open,
                reason = state.reason.map(Reason::label),
                "experimental switch"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    use serde_json::{Value, json};
    use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};

    use super::*;
    use crate::{
        policy::{Backend, Capability, Path, ResolverConfig, Role},
        telemetry,
    };

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// Log lines and scrape of telling of these inputs, one after the other.
    fn tell(resolver: &Resolver, all: &[Inputs]) -> (Vec<Value>, String) {
        let (lines, recorder) = (Lines::default(), telemetry::local().unwrap());
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .without_time()
            .with_max_level(LevelFilter::DEBUG)
            .with_writer(lines.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            ::metrics::with_local_recorder(&recorder, || {
                let mut announcer = Announcer::default();
                all.iter().for_each(|inputs| announcer.tell(resolver, inputs, &resolver.resolve(inputs)));
            });
        });
        let bytes = lines.0.lock().unwrap().clone();
        let lines = String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (lines, recorder.handle().render())
    }

    fn resolver() -> Resolver {
        let (top_k, roles) = (Some(64), vec![Role::Shared]);
        let capability = Capability::of(Backend::Cuda);
        Resolver::new(ResolverConfig { top_k, roles, capability, ..ResolverConfig::default() })
    }

    #[test]
    fn an_event_has_every_input_and_what_came_of_it() {
        let forced = Inputs { path: Some(Path::DirectSparse), ..Inputs::new(Phase::ShortPrefill, 2048, 131_072) };
        let (lines, scrape) = tell(&resolver(), &[forced]);
        assert_eq!(
            lines,
            [json!({
                "level": "INFO", "target": "skippy::policy", "message": "attention path",
                "profile": "none", "phase": "short_prefill", "backend": "cuda", "n_tokens": 2048, "n_kv": 131_072,
                "top_k": 64, "indexshare_role": "shared", "recommended": "none", "selected": "sparse-chunked",
                "rejected": "direct-sparse", "reason": "backend_unsupported", "refused": false,
                "dense_mask_bytes": 1u64 << 30, "dense_mask_avoided_bytes": 1u64 << 30,
            })]
        );
        let count = "skippy_policy_decisions_total{profile=\"none\",phase=\"short_prefill\",recommended=\"none\",\
                     selected=\"sparse-chunked\",reason=\"backend_unsupported\"} 1";
        assert!(scrape.contains(count), "{scrape}");
        let bytes = "skippy_policy_dense_mask_avoided_bytes_total{phase=\"short_prefill\"} 1073741824";
        assert!(scrape.contains(bytes), "{scrape}");
    }

    #[test]
    fn a_threshold_that_decided_is_named_with_its_value() {
        let (lines, _) = tell(&resolver(), &[Inputs::new(Phase::ShortPrefill, 2048, 131_072)]);
        assert_eq!(lines[0]["threshold"], "dense_mask_max_bytes");
        assert_eq!(lines[0]["threshold_value"], 268_435_456);
    }

    #[test]
    fn a_departure_is_told_aloud_once_for_its_phase_and_reason() {
        let plain = Inputs::new(Phase::Decode, 1, 100);
        let forced = Inputs { path: Some(Path::Fallback), ..plain };
        let lacking = Inputs { path: Some(Path::DirectSparse), ..plain };
        let other = Inputs { phase: Phase::Verify, ..forced };
        let (lines, _) = tell(&resolver(), &[plain, forced, forced, lacking, forced, other, lacking, other]);
        let levels: Vec<&str> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
        assert_eq!(levels, ["DEBUG", "INFO", "DEBUG", "INFO", "DEBUG", "INFO", "DEBUG", "DEBUG"]);
    }
}
