//! Metadata: ordered keys with typed values.

use std::sync::Arc;

use super::{Array, Value, rules::ALIGNMENT_KEY};

/// Key-values in file order, each key once.
///
/// Lookups walk the list: a model has some dozens of keys. Copies share the values: a vocabulary is an array of hundreds
/// of thousands of strings, and every stage of a model has its own version of the other keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(Vec<(String, Arc<Value>)>);

impl Metadata {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_ref())
    }

    /// Gives `key` a value: in place when the key is there, at the end otherwise.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), Arc::new(value.into()));
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some(entry) => entry.1 = value,
            None => self.0.push((key, value)),
        }
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.0.iter().position(|(k, _)| k == key)?;
        Some(Arc::unwrap_or_clone(self.0.remove(at).1))
    }

    /// Keeps the entries whose key satisfies `keep`.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|(key, _)| keep(key));
    }

    /// Key-values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_ref()))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of `key`, when it is a string in UTF-8.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The value of `key`, when it is an integer of any type and not negative.
    pub fn uint(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_uint()
    }

    /// The value of `key`, when it is a floating-point number.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_float()
    }

    /// The value of `key`, when it is a bool.
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// The value of `key`, when it is an array.
    pub fn array(&self, key: &str) -> Option<&Array> {
        self.get(key)?.as_array()
    }

    /// `general.architecture`.
    pub fn arch(&self) -> Option<&str> {
        self.str("general.architecture")
    }

    /// `<arch>.<suffix>`; without an architecture the key starts with the dot and is found nowhere.
    pub fn arch_key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch().unwrap_or_default())
    }

    /// The value of `<arch>.<suffix>`, when it is an integer and not negative.
    pub fn arch_uint(&self, suffix: &str) -> Option<u64> {
        self.uint(&self.arch_key(suffix))
    }

    /// The entries as they are; the caller has seen to it that no key appears twice.
    pub(super) fn from_unique(entries: Vec<(String, Value)>) -> Self {
        Self(entries.into_iter().map(|(key, value)| (key, Arc::new(value))).collect())
    }

    /// A copy whose `general.alignment` says `alignment`; the key is not added for the default.
    pub(super) fn with_alignment(&self, alignment: u32, default: u32) -> Self {
        let mut copy = self.clone();
        if alignment != default || copy.get(ALIGNMENT_KEY).is_some() {
            copy.set(ALIGNMENT_KEY, Value::U32(alignment));
        }
        copy
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut metadata = Self::default();
        for (key, value) in entries {
            metadata.set(key, value);
        }
        metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufString;

    #[test]
    fn metadata_keeps_order_and_replaces_in_place() {
        let mut meta: Metadata = [("a", Value::U8(1)), ("b", Value::I32(-2)), ("c", "x".into())].into_iter().collect();
        meta.set("a", 7u64);
        assert_eq!(meta.iter().map(|(k, _)| k).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((meta.uint("a"), meta.uint("b"), meta.str("c")), (Some(7), None, Some("x")));
        assert_eq!(meta.remove("b"), Some(Value::I32(-2)));
        assert_eq!(meta.len(), 2);
    }

    #[test]
    fn typed_lookups_do_not_convert_between_kinds() {
        let meta: Metadata = [
            ("general.architecture", Value::from("glm")),
            ("glm.block_count", 3u16.into()),
            ("f", 0.5f32.into()),
            ("t", true.into()),
            ("bad", GgufString::from(vec![0xff]).into()),
        ]
        .into_iter()
        .collect();
        assert_eq!(meta.arch_uint("block_count"), Some(3));
        assert_eq!((meta.float("f"), meta.uint("f"), meta.bool("f")), (Some(0.5), None, None));
        assert_eq!((meta.bool("t"), meta.uint("t")), (Some(true), None));
        assert_eq!(meta.str("bad"), None);
        assert_eq!(Metadata::default().arch_uint("block_count"), None);
    }
}
