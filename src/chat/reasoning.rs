//! Marks around what a model thinks before it answers.

/// The texts that open and close a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    /// Opens it.
    pub open: &'static str,
    /// Closes it.
    pub close: &'static str,
}

/// The pairs in use.
const KNOWN: [Markers; 6] = [
    Markers { open: "<think>", close: "</think>" },
    Markers { open: "[THINK]", close: "[/THINK]" },
    Markers { open: "<seed:think>", close: "</seed:think>" },
    Markers { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    Markers { open: "◁think▷", close: "◁/think▷" },
    Markers { open: "<reasoning>", close: "</reasoning>" },
];

impl Markers {
    /// The pair that a template knows. Some only ever cut old thoughts off, and so name the closing one alone.
    pub(super) fn of(source: &str) -> Option<Self> {
        KNOWN.into_iter().find(|markers| source.contains(markers.close))
    }

    /// Whether a prompt ends within an opened thought.
    pub(super) fn opened_by(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}
