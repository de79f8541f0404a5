//! JSON as Python's `json.dumps` writes it: models have seen tools in that form.

use std::io;

use serde::Serialize;
use serde_json::{Value, ser::Formatter};

/// How to write it. The default is that of Hugging Face's `tojson`: one line, a space behind `,` and `:`, characters as
/// they are.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// Between items.
    pub(super) item_separator: String,
    /// Between key and value.
    pub(super) key_separator: String,
    /// Spaces for each level, and every item on a line of its own.
    pub(super) indent: Option<usize>,
    /// Whether to escape what is not ASCII.
    pub(super) ascii: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self { item_separator: ", ".into(), key_separator: ": ".into(), indent: None, ascii: false }
    }
}

/// `value` as JSON text.
pub(super) fn to_string(value: &Value, style: Style) -> String {
    let mut bytes = Vec::with_capacity(128);
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Python { style, depth: 0, empty: true });
    // A `Value` has string keys only, and memory does not fail to be written to.
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok());
    String::from_utf8(bytes).unwrap_or_default()
}

/// `value` in the default style.
pub(super) fn dumps(value: &Value) -> String {
    to_string(value, Style::default())
}

struct Python {
    style: Style,
    depth: usize,
    empty: bool,
}

impl Python {
    fn open<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if !self.empty {
            self.new_line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn item<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            writer.write_all(self.style.item_separator.as_bytes())?;
        }
        self.new_line(writer)
    }

    fn new_line<W: io::Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        match self.style.indent {
            Some(spaces) => write!(writer, "\n{:1$}", "", spaces.saturating_mul(self.depth)),
            None => Ok(()),
        }
    }
}

impl Formatter for Python {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.style.key_separator.as_bytes())
    }

    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.style.ascii || fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if c.is_ascii() {
                write!(writer, "{c}")?;
            } else {
                c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn as_python_writes_it() {
        let value = json!({"b": [1, 2.0, "é\n\"", {}], "a": {"x": null, "y": true}, "e": []});
        assert_eq!(
            dumps(&value),
            r#"{"b": [1, 2.0, "é\n\"", {}], "a": {"x": null, "y": true}, "e": []}"#,
            "keys stay in their order"
        );
        let indented = Style { item_separator: ",".into(), indent: Some(2), ascii: true, ..Style::default() };
        assert_eq!(
            to_string(&json!({"b": [1, "é🏖"], "e": []}), indented),
            "{\n  \"b\": [\n    1,\n    \"\\u00e9\\ud83c\\udfd6\"\n  ],\n  \"e\": []\n}"
        );
        assert_eq!(dumps(&json!("x")), "\"x\"");
    }
}
