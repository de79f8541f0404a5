//! Request objects: every field optional, `null` means absent, unknown fields are skipped and remembered by name.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use super::error::capped;

/// Declares a request object. Each field becomes an `Option`; the struct also gets `unknown` and a list `FIELDS`.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        $vis struct $name {
            $($(#[$field_doc])* pub $field: Option<$ty>,)+
            /// Names of fields that this server does not know.
            pub unknown: $crate::http::wire::UnknownFields,
        }

        impl $name {
            /// Every known field.
            #[cfg(test)]
            $vis const FIELDS: &'static [&'static str] = &[$(stringify!($field),)+];
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;

                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut object = $name::default();
                        let mut seen: Vec<&'static str> = Vec::new();
                        while let Some(key) = map.next_key::<String>()? {
                            match key.as_str() {
                                $(stringify!($field) => {
                                    if seen.contains(&stringify!($field)) {
                                        return Err(serde::de::Error::duplicate_field(stringify!($field)));
                                    }
                                    seen.push(stringify!($field));
                                    object.$field = map.next_value()?;
                                })+
                                unknown => {
                                    object.unknown.note(unknown);
                                    map.next_value::<serde::de::IgnoredAny>()?;
                                }
                            }
                        }
                        Ok(object)
                    }
                }

                deserializer.deserialize_map(Visitor)
            }
        }
    };
}

pub(super) use wire_struct;

/// Names of unknown fields, sorted, a bounded number of them, each cut to 40 characters.
#[derive(Debug, Default)]
pub struct UnknownFields(BTreeSet<String>);

impl UnknownFields {
    const MAX: usize = 16;

    /// Remembers a name.
    pub fn note(&mut self, name: &str) {
        if self.0.len() < Self::MAX {
            self.0.insert(capped(name, 40));
        }
    }
}

/// Warns of unknown fields, once for every set of names, and falls silent after a number of sets: clients choose the
/// names, the log must stay bounded.
#[derive(Debug, Default)]
pub(super) struct UnknownFieldLog(Mutex<BTreeSet<String>>);

impl UnknownFieldLog {
    const MAX: usize = 64;

    /// Warns of `fields` of `object`, if they are news. Whether it did.
    pub(super) fn warn(&self, object: &'static str, fields: &UnknownFields) -> bool {
        if fields.0.is_empty() {
            return false;
        }
        let names = fields.0.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let key = format!("{object}: {names}");
        let mut warned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let news = warned.len() < Self::MAX && warned.insert(key);
        drop(warned);
        if news {
            tracing::warn!(object, fields = names, "unknown request fields are ignored");
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    wire_struct! {
        /// A test object.
        struct Thing {
            /// A number.
            size: u32,
            /// A word.
            name: String,
        }
    }

    fn parse(json: &str) -> Result<Thing, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn llama_cpp_25515_null_is_absent() {
        let thing = parse(r#"{"size":null,"name":"x"}"#).unwrap();
        assert_eq!((thing.size, thing.name.as_deref()), (None, Some("x")));
        assert_eq!(Thing::FIELDS, ["size", "name"]);
    }

    #[test]
    fn refuses_doubles_and_what_is_no_object() {
        assert!(parse(r#"{"size":1,"size":2}"#).unwrap_err().to_string().contains("duplicate field `size`"));
        assert!(parse(r#"{"size":null,"size":2}"#).is_err());
        assert!(parse("[1]").unwrap_err().to_string().contains("expected an object"));
    }

    /// atoma-infer#244: a misspelt field is dropped, but not silently.
    #[test]
    fn atoma_infer_244_unknown_fields_are_warned_of_once() {
        let log = UnknownFieldLog::default();
        let thing = parse(r#"{"sise":{"deep":[1,2]},"size":3}"#).unwrap();
        assert_eq!(thing.size, Some(3));
        assert!(log.warn("thing", &thing.unknown));
        assert!(!log.warn("thing", &thing.unknown));
        assert!(!log.warn("thing", &parse("{}").unwrap().unknown));
        let news =
            (0..1000).filter(|i| log.warn("thing", &parse(&format!(r#"{{"x{i}":0}}"#)).unwrap().unknown)).count();
        assert_eq!(news, UnknownFieldLog::MAX - 1);
    }
}
