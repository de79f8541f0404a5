//! Evidence for experimental switches: what a bench has measured, on which backend and device.
//!
//! A package may declare a switch `evidence-gated`. It opens only where a measurement of the same profile, switch, backend
//! and device shows parity and a gain; a switch without evidence stays closed, whatever the package says.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{
    capability::{Backend, Capability},
    types::{Profile, Reason},
};
use crate::package::generation::{Gate, Open, Switch, Vocabulary as _};

/// Largest tolerance that an entry may claim for its outputs: what F16 KV rows cost against F32 ones. A larger difference
/// is another result.
pub const MAX_TOLERANCE: f64 = 5e-3;

/// Why an evidence file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvidenceError {
    /// Not the JSON we expect.
    #[error("evidence is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// Another version of the format.
    #[error("evidence has `version` {0}, expected {VERSION}")]
    Version(u32),
    /// A number that no measurement can give.
    #[error("`entries[{index}].{field}` must be {expected}, got {got}")]
    Number {
        /// Which entry.
        index: usize,
        /// Its field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        got: f64,
    },
}

/// The format that this version reads.
const VERSION: u32 = 1;

/// Measurements of experimental switches.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    entries: Vec<Measurement>,
}

/// One measurement: a switch on against off, at one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The profile of the package measured.
    pub profile: Profile,
    /// The switch.
    #[serde(serialize_with = "switch_name", deserialize_with = "switch")]
    pub switch: Switch,
    /// Where.
    pub backend: Backend,
    /// On which device, as [`Capability::device`] names it.
    pub device: String,
    /// At which shape.
    pub shape: Shape,
    /// Largest absolute difference of the outputs.
    pub parity_error: f64,
    /// Largest difference that counts as parity; at most [`MAX_TOLERANCE`].
    pub tolerance: f64,
    /// Time without the switch over time with it: above 1 is a gain.
    pub speed_ratio: f64,
}

/// The shape of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Rows of the pass.
    pub n_tokens: u32,
    /// KV rows.
    pub n_kv: u32,
    /// Selected rows.
    pub top_k: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    entries: Vec<Measurement>,
}

impl Evidence {
    /// Reads an evidence file: `{"version": 1, "entries": [..]}`.
    ///
    /// # Errors
    /// When it is no JSON of this form, names something unknown, or holds an impossible number.
    pub fn from_json(text: &str) -> Result<Self, EvidenceError> {
        let File { version, entries } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(EvidenceError::Version(version));
        }
        Self::new(entries)
    }

    /// Evidence of these measurements.
    ///
    /// # Errors
    /// The first impossible number.
    pub fn new(entries: Vec<Measurement>) -> Result<Self, EvidenceError> {
        for (index, entry) in entries.iter().enumerate() {
            let number = |field, expected, got| EvidenceError::Number { index, field, expected, got };
            if !(entry.parity_error >= 0.0 && entry.parity_error.is_finite()) {
                return Err(number("parity_error", "finite and not negative", entry.parity_error));
            }
            if !(0.0..=MAX_TOLERANCE).contains(&entry.tolerance) {
                return Err(number("tolerance", "between 0 and 0.005", entry.tolerance));
            }
            if !(entry.speed_ratio > 0.0 && entry.speed_ratio.is_finite()) {
                return Err(number("speed_ratio", "finite and above 0", entry.speed_ratio));
            }
        }
        Ok(Self { entries })
    }

    /// The measurements.
    pub fn entries(&self) -> &[Measurement] {
        &self.entries
    }

    /// Whether `switch` may open for a package of `profile` on this backend and device.
    ///
    /// Every matching measurement counts: one shape with other output, or one that loses, keeps it closed.
    ///
    /// # Errors
    /// [`Reason::EvidenceMissing`], [`Reason::ParityFailed`] or [`Reason::EvidenceNoWin`].
    pub fn opens(&self, profile: Profile, switch: Switch, capability: &Capability) -> Result<(), Reason> {
        let matching = self.entries.iter().filter(|entry| {
            (entry.profile, entry.switch, entry.backend) == (profile, switch, capability.backend)
                && entry.device == capability.device
        });
        let (mut found, mut parity, mut win) = (false, true, true);
        for entry in matching {
            found = true;
            parity &= entry.parity_error <= entry.tolerance;
            win &= entry.speed_ratio > 1.0;
        }
        match (found, parity, win) {
            (false, ..) => Err(Reason::EvidenceMissing),
            (true, false, _) => Err(Reason::ParityFailed),
            (true, true, false) => Err(Reason::EvidenceNoWin),
            (true, true, true) => Ok(()),
        }
    }
}

/// An experimental switch, as it stands for one stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SwitchState {
    /// Its name.
    #[serde(serialize_with = "switch_name")]
    pub switch: Switch,
    /// What the package declares, as written; absent when it declares nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<Open<Gate>>,
    /// Whether it is open.
    pub open: bool,
    /// Why it is closed, when the package declares it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

impl SwitchState {
    /// How `switch` stands, given what the package declares.
    pub(super) fn of(
        switch: Switch,
        declared: Option<Open<Gate>>,
        profile: Profile,
        capability: &Capability,
        evidence: &Evidence,
    ) -> Self {
        let verdict = match (&declared, profile) {
            (None, _) => Err(None),
            (Some(_), Profile::Unknown) => Err(Some(Reason::UnknownProfile)),
            (Some(Open::Unknown(_)), _) => Err(Some(Reason::UnknownValue)),
            (Some(Open::Known(Gate::EvidenceGated)), profile) => {
                evidence.opens(profile, switch, capability).map_err(Some)
            }
        };
        Self { switch, declared, open: verdict.is_ok(), reason: verdict.err().flatten() }
    }
}

fn switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Switch, D::Error> {
    let text = String::deserialize(deserializer)?;
    let known = Switch::NAMES.iter().find(|(name, _)| *name == text);
    known.map(|(_, switch)| *switch).ok_or_else(|| {
        let names: Vec<&str> = Switch::NAMES.iter().map(|(name, _)| *name).collect();
        D::Error::custom(format!("must be one of {}, got `{text}`", names.join(", ")))
    })
}

// serde wants the reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn switch_name<S: serde::Serializer>(switch: &Switch, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(switch.name())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry() -> Value {
        json!({
            "profile": "glm-dsa-v1", "switch": "selected_row_flash", "backend": "cpu", "device": "cpu",
            "shape": {"n_tokens": 1, "n_kv": 32768, "top_k": 2048},
            "parity_error": 1e-5, "tolerance": 1e-4, "speed_ratio": 1.3,
        })
    }

    fn with(field: &str, value: Value) -> Value {
        let mut entry = entry();
        entry[field] = value;
        entry
    }

    fn read(entries: &[Value]) -> Result<Evidence, EvidenceError> {
        Evidence::from_json(&json!({"version": 1, "entries": entries}).to_string())
    }

    #[test]
    fn a_switch_opens_only_where_it_was_measured_to_win() {
        let cases: &[(&[Value], Result<(), Reason>)] = &[
            (&[], Err(Reason::EvidenceMissing)),
            (&[entry()], Ok(())),
            (&[with("switch", json!("moe_weighted_down"))], Err(Reason::EvidenceMissing)),
            (&[with("backend", json!("cuda"))], Err(Reason::EvidenceMissing)),
            (&[with("device", json!("another"))], Err(Reason::EvidenceMissing)),
            (&[with("profile", json!("none"))], Err(Reason::EvidenceMissing)),
            (&[with("parity_error", json!(1e-4))], Ok(())),
            (&[with("parity_error", json!(1.1e-4))], Err(Reason::ParityFailed)),
            (&[with("speed_ratio", json!(1.0))], Err(Reason::EvidenceNoWin)),
            (&[entry(), with("speed_ratio", json!(0.9))], Err(Reason::EvidenceNoWin)),
            (&[with("speed_ratio", json!(0.9)), with("parity_error", json!(1.0))], Err(Reason::ParityFailed)),
            (&[entry(), with("backend", json!("metal"))], Ok(())),
        ];
        for (entries, wanted) in cases {
            let evidence = read(entries).unwrap();
            let got = evidence.opens(Profile::GlmDsaV1, Switch::SelectedRowFlash, &Capability::default());
            assert_eq!(got, *wanted, "{entries:?}");
        }
    }

    #[test]
    fn bad_files_are_refused_by_name() {
        let refused = |text: &str| Evidence::from_json(text).unwrap_err().to_string();
        for (field, value, said) in [
            ("switch", json!("warp"), "moe_weighted_down"),
            ("backend", json!("tpu"), "must be one of cpu, cuda, metal, vulkan, got `tpu`"),
            ("profile", json!("glm-dsa-v9"), "got `glm-dsa-v9`"),
            ("tolerance", json!(0.1), "`entries[0].tolerance` must be between 0 and 0.005, got 0.1"),
            ("parity_error", json!(-1.0), "`entries[0].parity_error`"),
            ("speed_ratio", json!(0.0), "`entries[0].speed_ratio`"),
            ("speed_ratio", json!("fast"), "invalid type"),
            ("sped_ratio", json!(2.0), "unknown field `sped_ratio`"),
            ("shape", json!({"n_tokens": 1}), "missing field `n_kv`"),
        ] {
            let text = json!({"version": 1, "entries": [with(field, value)]}).to_string();
            assert!(refused(&text).contains(said), "{}", refused(&text));
        }
        assert_eq!(refused(r#"{"version": 2, "entries": []}"#), "evidence has `version` 2, expected 1");
        assert!(refused("[]").starts_with("evidence is not valid"));
    }

    #[test]
    fn evidence_reads_back() {
        let evidence = read(&[entry()]).unwrap();
        let entries = serde_json::to_value(&evidence).unwrap()["entries"].clone();
        assert_eq!(read(entries.as_array().unwrap()).unwrap(), evidence);
    }
}
