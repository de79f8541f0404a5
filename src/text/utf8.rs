//! UTF-8 text out of bytes that arrive in arbitrary pieces.

/// Turns a stream of bytes into text, equal to [`String::from_utf8_lossy`] over the whole stream.
///
/// A sequence that is merely *incomplete* at the end of a piece waits for its rest; bytes that can never become
/// valid turn into U+FFFD at once.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// An incomplete sequence, at most 3 bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and appends the text that is complete to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.held.is_empty() {
            let rest = decode(bytes, out);
            self.held.extend_from_slice(rest);
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(bytes);
            let rest = decode(&joined, out).len();
            joined.drain(..joined.len() - rest);
            self.held = joined;
        }
    }

    /// The stream ended: an incomplete sequence becomes one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Bytes held back at the moment.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// Appends the decoded text to `out` and returns the incomplete sequence at the end, if any.
fn decode<'a>(mut bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        out.push_str(std::str::from_utf8(valid).unwrap_or_default());
        match error.error_len() {
            None => return rest,
            Some(invalid) => {
                out.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[invalid..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(pieces: &[&[u8]]) -> Vec<String> {
        let mut stream = Utf8Stream::new();
        let mut deltas: Vec<String> = Vec::new();
        for piece in pieces {
            let mut delta = String::new();
            stream.push(piece, &mut delta);
            deltas.push(delta);
        }
        let mut delta = String::new();
        stream.finish(&mut delta);
        deltas.push(delta);
        deltas
    }

    /// ferrox#124: incomplete and invalid sequences were mixed up.
    #[test]
    fn ferrox_124_emoji_over_tokens_and_invalid_bytes() {
        assert_eq!(run(&[b"a\xf0", b"\x9f", b"\x8f", b"\x96b"]), ["a", "", "", "\u{1f3d6}b", ""]);
        assert_eq!(run(&[b"\xf0\x9f", b"\x8f\x96"]), ["", "\u{1f3d6}", ""]);
        assert_eq!(run(&[b"a\xffb", b"c"]), ["a\u{fffd}b", "c", ""]);
        assert_eq!(run(&[b"\xf0\x9f", b"x"]), ["", "\u{fffd}x", ""]);
        assert_eq!(run(&[b"\xf0\x9f\x8f"]), ["", "\u{fffd}"]);
        assert_eq!(run(&[b"\xed\xa0\x80"]), ["\u{fffd}\u{fffd}\u{fffd}", ""]);
    }

    proptest! {
        #[test]
        fn equals_lossy_decoding_at_any_split(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..4),
                    prop::collection::vec(prop::sample::select(b"\xf0\x9f\x8f\x96\xe2\x82\xac\xc3a\xed\xa0".to_vec()), 0..5),
                    any::<String>().prop_map(String::into_bytes),
                ],
                0..12,
            ),
        ) {
            let whole = pieces.concat();
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(run(&pieces).concat(), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn holds_at_most_three_bytes(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..12)) {
            let mut stream = Utf8Stream::new();
            let mut out = String::new();
            for piece in pieces {
                stream.push(&piece, &mut out);
                prop_assert!(stream.held() <= 3);
            }
        }
    }
}
