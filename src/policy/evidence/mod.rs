//! Evidence for experimental switches: what a bench has measured, on which build and machine.
//!
//! A package may declare a switch `evidence-gated`. It opens only where this very build has shown parity and a gain on
//! this machine; a switch without evidence stays closed, whatever the package says. A file carries a seal, so that an
//! edited number or a mixed-up file shows. It is no signature: whoever recomputes it is believed.

mod origin;
mod seal;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

pub use origin::{Difference, Origin};

use super::{
    capability::Capability,
    types::{Profile, Reason},
};
use crate::package::generation::{Switch, Vocabulary as _};

/// Largest tolerance that an entry may claim for its outputs: what F16 KV rows cost against F32 ones. A larger difference
/// is another result.
pub const MAX_TOLERANCE: f64 = 5e-3;

/// The format that this version reads and writes.
const VERSION: u32 = 2;

/// Longest file that is read, bytes: thousands of measurements.
const MAX_BYTES: u64 = 4 << 20;

/// Why an evidence file cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvidenceError {
    /// The file cannot be read.
    #[error("cannot read the evidence in `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no evidence.
    #[error("`{}`: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<EvidenceError>,
    },
    /// The running executable cannot be hashed.
    #[error("cannot tell whether the evidence is of this build: {0}")]
    Executable(io::Error),
    /// Not the JSON we expect.
    #[error("evidence is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// Not the JSON we expect, in one of its fields.
    #[error("evidence is not valid: `{field}`: {source}")]
    Field {
        /// Where, as `entries[0].speed_ratio`.
        field: String,
        /// What is wrong.
        source: serde_json::Error,
    },
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

/// Measurements of experimental switches, of one run of the bench.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    origin: Origin,
    entries: Vec<Measurement>,
    /// Whether the seal fits the rest.
    intact: bool,
}

/// Evidence, and what it is held against.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exhibit {
    /// The measurements.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// The build and machine that ask.
    pub here: Origin,
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
    /// Selected rows; 0 where nothing is selected.
    pub top_k: u32,
}

/// An evidence file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    origin: Origin,
    entries: Vec<Measurement>,
    seal: String,
}

impl Evidence {
    /// Reads an evidence file.
    ///
    /// # Errors
    /// [`EvidenceError::Io`], or [`EvidenceError::File`] around what [`read`](Self::read) says.
    pub fn open(path: &Path) -> Result<Self, EvidenceError> {
        let text = || {
            let mut text = String::new();
            File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
            if text.len() as u64 > MAX_BYTES {
                return Err(io::Error::other(format!("longer than {MAX_BYTES} bytes")));
            }
            Ok(text)
        };
        let text = text().map_err(|source| EvidenceError::Io { path: path.to_owned(), source })?;
        Self::read(&text).map_err(|error| EvidenceError::File { path: path.to_owned(), source: Box::new(error) })
    }

    /// Reads the text of an evidence file. A seal that does not fit is no error here: it closes every gate.
    ///
    /// # Errors
    /// When it is no JSON of this form, names something unknown, or holds an impossible number.
    pub fn read(text: &str) -> Result<Self, EvidenceError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = parse(text)?;
        if version != VERSION {
            return Err(EvidenceError::Version(version));
        }
        let Document { origin, entries, seal, .. } = parse(text)?;
        check(&entries)?;
        let intact = seal == seal::of(&origin, &entries);
        Ok(Self { origin, entries, intact })
    }

    /// The text of an evidence file with these measurements, sealed.
    ///
    /// # Errors
    /// The first number that no measurement can give.
    pub fn seal(entries: Vec<Measurement>, origin: Origin) -> Result<String, EvidenceError> {
        check(&entries)?;
        let seal = seal::of(&origin, &entries);
        let mut text = serde_json::to_string_pretty(&Document { version: VERSION, origin, entries, seal })?;
        text.push('\n');
        Ok(text)
    }

    /// The measurements.
    pub fn entries(&self) -> &[Measurement] {
        &self.entries
    }

    /// The build and machine that made them.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether the seal fits.
    pub fn is_intact(&self) -> bool {
        self.intact
    }

    /// Whether `switch` may open for a package of `profile` on the build and machine `here`.
    ///
    /// Every measurement of the switch counts: one shape with other output, or one that loses, keeps it closed.
    ///
    /// # Errors
    /// The most telling reason: [`Reason::EvidenceEdited`], then [`Reason::EvidenceMissing`] (no measurement of this
    /// profile, switch and backend), [`Reason::EvidenceForeignBuild`], [`Reason::EvidenceForeignCpu`],
    /// [`Reason::ParityFailed`], [`Reason::EvidenceNoWin`].
    pub fn opens(&self, profile: Profile, switch: Switch, here: &Origin) -> Result<(), Reason> {
        let matching = || self.entries.iter().filter(|entry| (entry.profile, entry.switch) == (profile, switch));
        let is_foreign = |build| self.origin.differs(here).any(|difference| difference.is_of_build() == build);
        if !self.intact {
            Err(Reason::EvidenceEdited)
        } else if matching().next().is_none() || self.origin.backend != here.backend {
            Err(Reason::EvidenceMissing)
        } else if is_foreign(true) {
            Err(Reason::EvidenceForeignBuild)
        } else if is_foreign(false) {
            Err(Reason::EvidenceForeignCpu)
        } else if matching().any(|entry| entry.parity_error > entry.tolerance) {
            Err(Reason::ParityFailed)
        } else if matching().any(|entry| entry.speed_ratio <= 1.0) {
            Err(Reason::EvidenceNoWin)
        } else {
            Ok(())
        }
    }
}

impl Exhibit {
    /// Evidence against this process, whose executable is hashed, with the stage's backend and threads.
    ///
    /// # Errors
    /// [`EvidenceError::Executable`].
    pub fn here(evidence: Evidence, capability: &Capability, threads: u32) -> Result<Self, EvidenceError> {
        let here = Origin::here(capability, threads).map_err(EvidenceError::Executable)?;
        Ok(Self { evidence, here })
    }

    /// [`Evidence::opens`] here.
    ///
    /// # Errors
    /// Why the gate stays closed.
    pub fn opens(&self, profile: Profile, switch: Switch) -> Result<(), Reason> {
        self.evidence.opens(profile, switch, &self.here)
    }

    /// What makes the evidence foreign.
    pub fn differences(&self) -> impl Iterator<Item = Difference<'_>> {
        self.evidence.origin.differs(&self.here)
    }
}

fn parse<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, EvidenceError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let field = error.path().to_string();
        match field.as_str() {
            // Where there is no field there is no name to give.
            "." | "?" => EvidenceError::Json(error.into_inner()),
            _ => EvidenceError::Field { field, source: error.into_inner() },
        }
    })?;
    deserializer.end()?;
    Ok(value)
}

fn check(entries: &[Measurement]) -> Result<(), EvidenceError> {
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
    Ok(())
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
pub(super) fn switch_name<S: serde::Serializer>(switch: &Switch, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(switch.name())
}
