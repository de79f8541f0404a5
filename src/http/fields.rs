//! The form in which request fields are documented: one table entry each, walked by tests and written to
//! `docs/api.md` and `/openapi.json`.

/// What a field does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It works, as described.
    Works(&'static str),
    /// Any value but null is answered with 400 `unsupported_parameter`.
    Refused(&'static str),
}

/// One documented field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, as on the wire.
    pub name: &'static str,
    /// JSON type and range.
    pub takes: &'static str,
    /// The same as a JSON schema, for `/openapi.json`. Says nothing of null, which every field accepts; what it cannot say
    /// (an id must be inside the vocabulary) it leaves out.
    pub schema: &'static str,
    /// What absence and null mean.
    pub default: &'static str,
    /// What it does.
    pub effect: Effect,
    /// A JSON value that is accepted; for a refused field one that other servers accept.
    pub good: &'static str,
    /// JSON values that are answered with 400 naming the field.
    pub bad: &'static [&'static str],
}
