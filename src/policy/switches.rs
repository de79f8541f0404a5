//! Experimental switches, as they stand for one stage.

use serde::Serialize;

use super::{
    evidence::{Exhibit, switch_name},
    types::{Profile, Reason, closed},
};
use crate::package::generation::{Gate, Open, Switch, Vocabulary as _};

/// The names of the switches.
pub const SWITCH_NAMES: &[&str] = &{
    let mut names = [""; Switch::NAMES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = Switch::NAMES[i].0;
        i += 1;
    }
    names
};

closed! {
    /// How a switch stands, as a metric tells it.
    Standing {
        /// It is open.
        Open => "open",
        /// The package does not declare it.
        NotDeclared => "not_declared",
        /// [`Reason::UnknownProfile`].
        UnknownProfile => "unknown_profile",
        /// [`Reason::UnknownValue`].
        UnknownValue => "unknown_value",
        /// [`Reason::EvidenceEdited`].
        EvidenceEdited => "evidence_edited",
        /// [`Reason::EvidenceMissing`].
        EvidenceMissing => "evidence_missing",
        /// [`Reason::EvidenceForeignBuild`].
        EvidenceForeignBuild => "evidence_foreign_build",
        /// [`Reason::EvidenceForeignCpu`].
        EvidenceForeignCpu => "evidence_foreign_cpu",
        /// [`Reason::ParityFailed`].
        ParityFailed => "parity_failed",
        /// [`Reason::EvidenceNoWin`].
        EvidenceNoWin => "evidence_no_win",
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
        evidence: Option<&Exhibit>,
    ) -> Self {
        let verdict = match (&declared, profile) {
            (None, _) => Err(None),
            (Some(_), Profile::Unknown) => Err(Some(Reason::UnknownProfile)),
            (Some(Open::Unknown(_)), _) => Err(Some(Reason::UnknownValue)),
            (Some(Open::Known(Gate::EvidenceGated)), profile) => {
                let evidence = evidence.ok_or(Reason::EvidenceMissing);
                evidence.and_then(|evidence| evidence.opens(profile, switch)).map_err(Some)
            }
        };
        Self { switch, declared, open: verdict.is_ok(), reason: verdict.err().flatten() }
    }

    /// Its standing in one word. A reason has the same name there.
    pub fn standing(&self) -> Standing {
        match (self.open, self.reason) {
            (true, _) => Standing::Open,
            (false, None) => Standing::NotDeclared,
            (false, Some(reason)) => Standing::from_label(reason.label()).unwrap_or(Standing::EvidenceMissing),
        }
    }
}
