//! Request objects: every field optional, `null` means absent, unknown fields are skipped and remembered by name.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use super::error::capped;

/// Declares a request object. Each field becomes an `Option`; the struct also gets `unknown` and a list `FIELDS`.
///
/// `field as "name": type` gives a field another name on the wire. A last line `..group: Type,` takes in all fields of
/// another such struct, as if they stood here.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[$field_doc:meta])* $field:ident $(as $wire:literal)?: $ty:ty,)+
        $(.. $group:ident: $group_ty:ty,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        $vis struct $name {
            $($(#[$field_doc])* pub $field: Option<$ty>,)+
            $(
                /// The fields that this request shares with others.
                pub $group: $group_ty,
            )?
            /// Names of fields that this server does not know.
            pub unknown: $crate::http::wire::UnknownFields,
        }

        impl $name {
            /// Every known field, without those of a group.
            #[cfg(test)]
            #[allow(dead_code)]
            $vis const FIELDS: &'static [&'static str] = &[$($crate::http::wire::wire_name!($field $($wire)?),)+];

            /// Takes the value of field `key`, if there is such a field.
            pub(in $crate::http) fn take<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                key: &str,
                seen: &mut Vec<&'static str>,
                map: &mut A,
            ) -> Result<bool, A::Error> {
                match key {
                    $($crate::http::wire::wire_name!($field $($wire)?) => {
                        $crate::http::wire::once($crate::http::wire::wire_name!($field $($wire)?), seen)?;
                        self.$field = map.next_value()?;
                        Ok(true)
                    })+
                    _ => {
                        $(if self.$group.take(key, seen, map)? {
                            return Ok(true);
                        })?
                        Ok(false)
                    }
                }
            }
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
                            if !object.take(&key, &mut seen, &mut map)? {
                                object.unknown.note(&key);
                                map.next_value::<serde::de::IgnoredAny>()?;
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

/// The name of a field on the wire.
macro_rules! wire_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $wire:literal) => {
        $wire
    };
}

/// Notes that a field came.
///
/// # Errors
/// When it came before.
pub(super) fn once<E: serde::de::Error>(field: &'static str, seen: &mut Vec<&'static str>) -> Result<(), E> {
    if seen.contains(&field) {
        return Err(E::duplicate_field(field));
    }
    seen.push(field);
    Ok(())
}

pub(super) use wire_name;
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

    wire_struct! {
        /// An object that has what a thing has, and more.
        struct Bigger {
            /// A field with a Rust keyword for a name.
            kind as "type": String,
            ..thing: Thing,
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

    #[test]
    fn a_group_is_part_of_the_object() {
        let bigger: Bigger = serde_json::from_str(r#"{"size":3,"type":"x","thing":{},"kind":1}"#).unwrap();
        assert_eq!((bigger.thing.size, bigger.kind.as_deref()), (Some(3), Some("x")));
        assert_eq!(bigger.unknown.0, ["kind".to_owned(), "thing".to_owned()].into());
        assert!(serde_json::from_str::<Bigger>(r#"{"size":3,"type":"x","size":4}"#).is_err());
        assert_eq!(Bigger::FIELDS, ["type"]);
        let mut json = serde_json::Deserializer::from_str(r#"{"size":"x"}"#);
        let error = serde_path_to_error::deserialize::<_, Bigger>(&mut json).unwrap_err();
        assert_eq!(error.path().to_string(), "size");
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
