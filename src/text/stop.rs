//! Stop strings in a stream of bytes that arrives in arbitrary pieces.

/// Finds the first of several stop strings and lets through only text that cannot belong to one.
///
/// Works byte by byte, so the outcome does not depend on where tokens begin and end. The stop string that is
/// *completed* first ends the text; when several are completed by the same byte, the longest counts. The stop string
/// itself is never let through, nor is any suffix that may still grow into one, until [`StopMatcher::finish`].
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Bytes taken but not let through: the longest suffix that is a proper prefix of a stop string.
    held: Vec<u8>,
    stopped: bool,
}

/// One stop string as a Knuth-Morris-Pratt automaton.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Vec<usize>,
    /// Bytes matched so far, below `bytes.len()`.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for `stops`. Empty ones would match everywhere and are left out.
    pub fn new<S: AsRef<[u8]>>(stops: impl IntoIterator<Item = S>) -> Self {
        let patterns = stops.into_iter().filter_map(|stop| Pattern::new(stop.as_ref())).collect();
        Self { patterns, held: Vec::new(), stopped: false }
    }

    /// Takes the next bytes and appends to `out` what is safe to show. Returns whether a stop string has been
    /// completed, now or earlier; whatever follows it is dropped.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        if self.stopped {
            return true;
        }
        if self.patterns.is_empty() {
            out.extend_from_slice(bytes);
            return false;
        }
        for &byte in bytes {
            self.held.push(byte);
            let mut longest_match = 0;
            let mut longest_prefix = 0;
            for pattern in &mut self.patterns {
                if pattern.step(byte) {
                    longest_match = longest_match.max(pattern.bytes.len());
                }
                longest_prefix = longest_prefix.max(pattern.matched);
            }
            if longest_match > 0 {
                out.extend(self.held.drain(..self.held.len() - longest_match));
                self.held.clear();
                self.stopped = true;
                return true;
            }
            out.extend(self.held.drain(..self.held.len() - longest_prefix));
        }
        false
    }

    /// The text ended for another reason than a stop string: appends what was held back.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }

    /// Bytes held back at the moment.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether a stop string has been completed.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }
}

impl Pattern {
    fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        let mut border = vec![0; bytes.len()];
        let mut length = 0;
        for i in 1..bytes.len() {
            while length > 0 && bytes[i] != bytes[length] {
                length = border[length - 1];
            }
            if bytes[i] == bytes[length] {
                length += 1;
            }
            border[i] = length;
        }
        Some(Self { bytes: bytes.to_vec(), border, matched: 0 })
    }

    /// Advances by one byte; true when that completes the stop string.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        let complete = self.matched == self.bytes.len();
        if complete {
            self.matched = self.border[self.matched - 1];
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `pieces`, then finishes unless stopped: the text shown and whether a stop was found.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops);
        let mut out = Vec::new();
        for piece in pieces {
            matcher.push(piece.as_bytes(), &mut out);
        }
        if !matcher.is_stopped() {
            matcher.finish(&mut out);
        }
        (String::from_utf8(out).unwrap(), matcher.is_stopped())
    }

    /// SwiftLM#126: the first half of a stop string leaked when it was spread over two tokens.
    #[test]
    fn swiftlm_126_stop_over_two_tokens_does_not_leak() {
        let mut matcher = StopMatcher::new(["</end>"]);
        let mut out = Vec::new();
        assert!(!matcher.push(b"hello </e", &mut out));
        assert_eq!((out.as_slice(), matcher.held()), (&b"hello "[..], 3));
        assert!(matcher.push(b"nd> more", &mut out));
        assert_eq!(out, b"hello ");
        assert!(matcher.push(b"again", &mut out));
        matcher.finish(&mut out);
        assert_eq!(out, b"hello ");
    }

    /// llama.cpp#9867: the held-back tail was lost at the end of the stream.
    #[test]
    fn llama_9867_held_tail_is_flushed_at_the_end() {
        assert_eq!(run(&["</end>"], &["a </e", "n"]), ("a </en".into(), false));
    }

    #[test]
    fn a_false_start_is_let_through_and_the_overlap_is_kept() {
        assert_eq!(run(&["aab"], &["a", "a", "a", "b", "c"]), ("a".into(), true));
        assert_eq!(run(&["abab!"], &["ab", "ab", "ab!"]), ("ab".into(), true));
    }

    #[test]
    fn first_completed_wins_and_the_longest_of_those() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".into(), true));
        assert_eq!(run(&["bc", "abc"], &["xabc"]), ("x".into(), true));
        assert_eq!(run(&["bc", "abc"], &["xa", "b", "c"]), ("x".into(), true));
    }

    #[test]
    fn empty_stops_are_ignored() {
        assert_eq!(run(&["", ""], &["abc"]), ("abc".into(), false));
        assert_eq!(run(&[], &["abc"]), ("abc".into(), false));
    }

    /// Tries every end position, then every stop string.
    fn naive(stops: &[Vec<u8>], text: &[u8]) -> (Vec<u8>, bool) {
        for end in 1..=text.len() {
            let longest = stops.iter().filter(|s| !s.is_empty() && text[..end].ends_with(s)).map(Vec::len).max();
            if let Some(length) = longest {
                return (text[..end - length].to_vec(), true);
            }
        }
        (text.to_vec(), false)
    }

    /// The longest suffix that is a proper prefix of a stop string.
    fn naive_held(stops: &[Vec<u8>], text: &[u8]) -> usize {
        (0..=text.len())
            .rev()
            .find(|&n| n == 0 || stops.iter().any(|s| n < s.len() && s.starts_with(&text[text.len() - n..])))
            .unwrap_or(0)
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_search_at_any_split(
            stops in prop::collection::vec(prop::collection::vec(0u8..3, 0..6), 0..4),
            pieces in prop::collection::vec(prop::collection::vec(0u8..3, 0..5), 0..20),
        ) {
            let text = pieces.concat();
            let (expected, expected_stop) = naive(&stops, &text);
            let mut matcher = StopMatcher::new(&stops);
            let mut out = Vec::new();
            let mut taken = 0;
            for piece in &pieces {
                taken += piece.len();
                if matcher.push(piece, &mut out) {
                    break;
                }
                prop_assert!(text.starts_with(&out));
                prop_assert_eq!(matcher.held(), naive_held(&stops, &text[..taken]));
                prop_assert_eq!(out.len() + matcher.held(), taken);
            }
            prop_assert_eq!(matcher.is_stopped(), expected_stop);
            if !matcher.is_stopped() {
                matcher.finish(&mut out);
            }
            prop_assert_eq!(out, expected);
        }
    }
}
