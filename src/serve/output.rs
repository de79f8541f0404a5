//! From sampled tokens to the deltas a client sees.

use std::collections::VecDeque;

use crate::{
    serve::{Event, TokenOut},
    text::{StopMatcher, Utf8Stream},
};

/// The text of one answer on its way out: stop strings and incomplete characters are held back, together with the
/// tokens they came from.
pub(super) struct Output {
    stops: StopMatcher,
    utf8: Utf8Stream,
    /// Bytes of all tokens so far.
    taken: usize,
    /// Bytes that the stop matcher has let through.
    passed: usize,
    /// Tokens not yet delivered, with the place of their first and one past their last byte.
    waiting: VecDeque<(usize, usize, TokenOut)>,
    /// What the stop matcher lets through at a time; kept to be reused.
    scratch: Vec<u8>,
}

impl Output {
    pub(super) fn new(stops: StopMatcher) -> Self {
        Self { stops, utf8: Utf8Stream::new(), taken: 0, passed: 0, waiting: VecDeque::new(), scratch: Vec::new() }
    }

    /// Takes the next token; the delta to send, if any, and whether a stop string has ended the text.
    pub(super) fn push(&mut self, token: TokenOut) -> (Option<Event>, bool) {
        let start = self.taken;
        self.taken += token.bytes.len();
        self.scratch.clear();
        let stopped = self.stops.push(&token.bytes, &mut self.scratch);
        self.passed += self.scratch.len();
        self.waiting.push_back((start, self.taken, token));
        let mut text = String::new();
        self.utf8.push(&self.scratch, &mut text);
        let delta = if stopped {
            self.utf8.finish(&mut text);
            let cut = self.passed;
            self.deliver(text, |start, _| start < cut)
        } else {
            let shown = self.passed - self.utf8.held();
            self.deliver(text, |_, end| end <= shown)
        };
        (delta, stopped)
    }

    /// The answer ended without a stop string: the delta with all that was held back, if anything was.
    pub(super) fn finish(&mut self) -> Option<Event> {
        self.scratch.clear();
        self.stops.finish(&mut self.scratch);
        let mut text = String::new();
        self.utf8.push(&self.scratch, &mut text);
        self.utf8.finish(&mut text);
        self.deliver(text, |_, _| true)
    }

    /// The text with the tokens at the front that are `due`.
    fn deliver(&mut self, text: String, due: impl Fn(usize, usize) -> bool) -> Option<Event> {
        let n = self.waiting.iter().take_while(|&&(start, end, _)| due(start, end)).count();
        let tokens: Vec<TokenOut> = self.waiting.drain(..n).map(|(_, _, token)| token).collect();
        (n > 0 || !text.is_empty()).then_some(Event::Delta { text, tokens })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(bytes: &[u8]) -> TokenOut {
        TokenOut { id: 0, bytes: bytes.to_vec(), logprob: None, top: Vec::new() }
    }

    /// A delta as its text and the bytes of its tokens.
    type Delta = (String, Vec<Vec<u8>>);

    /// The deltas of an answer, and whether a stop string ended it.
    fn run(stops: &[&str], pieces: &[&[u8]]) -> (Vec<Delta>, bool) {
        let mut output = Output::new(StopMatcher::new(stops));
        let mut deltas = Vec::new();
        let mut stopped = false;
        let mut keep = |delta| {
            if let Some(Event::Delta { text, tokens }) = delta {
                deltas.push((text, tokens.into_iter().map(|token| token.bytes).collect()));
            }
        };
        for piece in pieces {
            let (delta, stop) = output.push(token(piece));
            keep(delta);
            stopped = stop;
            if stop {
                break;
            }
        }
        if !stopped {
            keep(output.finish());
        }
        (deltas, stopped)
    }

    fn delta(text: &str, tokens: &[&[u8]]) -> Delta {
        (text.into(), tokens.iter().map(|token| token.to_vec()).collect())
    }

    #[test]
    fn tokens_come_with_their_last_byte() {
        let (deltas, _) = run(&[], &[b"a\xf0\x9f", b"\x8f\x96b", b"", b"c"]);
        let expected = [
            delta("a", &[]),
            delta("\u{1f3d6}b", &[b"a\xf0\x9f", b"\x8f\x96b"]),
            delta("", &[b""]),
            delta("c", &[b"c"]),
        ];
        assert_eq!(deltas, expected);
    }

    #[test]
    fn tokens_behind_a_stop_string_are_not_delivered() {
        let (deltas, stopped) = run(&["END"], &[b"one ", b"two E", b"N", b"", b"D three"]);
        assert!(stopped);
        assert_eq!(deltas, [delta("one ", &[b"one "]), delta("two ", &[]), delta("", &[b"two E"])]);
    }

    #[test]
    fn a_false_start_of_a_stop_string_is_delivered_late() {
        let (deltas, stopped) = run(&["END"], &[b"E", b"N", b"E"]);
        assert!(!stopped);
        assert_eq!(deltas, [delta("EN", &[b"E", b"N"]), delta("E", &[b"E"])]);
    }

    proptest! {
        #[test]
        fn deltas_join_to_the_whole_text_and_name_the_tokens_in_it(
            pieces in prop::collection::vec(prop::collection::vec(prop::sample::select(b"ab\xc3\xa4\xf0\x9f".to_vec()), 0..4), 0..16),
            stops in prop::collection::vec("[ab]{1,4}", 0..3),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let (deltas, stopped) = run(&stops, &pieces);
            let text: String = deltas.iter().map(|(text, _)| text.as_str()).collect();
            let tokens: Vec<Vec<u8>> = deltas.into_iter().flat_map(|(_, tokens)| tokens).collect();

            let mut matcher = StopMatcher::new(&stops);
            let mut whole = Vec::new();
            matcher.push(&pieces.concat(), &mut whole);
            if !matcher.is_stopped() {
                matcher.finish(&mut whole);
            }
            prop_assert_eq!(stopped, matcher.is_stopped());
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
            let ends: Vec<usize> = pieces.iter().scan(0, |end, piece| { *end += piece.len(); Some(*end) }).collect();
            // A token without bytes right at the cut may or may not have gone out before the cut was known.
            let surely = ends.iter().zip(&pieces).take_while(|(end, piece)| **end - piece.len() < whole.len()).count();
            let at_most = if stopped { ends.iter().take_while(|end| **end <= whole.len()).count().max(surely) } else { pieces.len() };
            let at_least = if stopped { surely } else { pieces.len() };
            prop_assert!((at_least..=at_most).contains(&tokens.len()), "{} of {:?}", tokens.len(), (at_least, at_most));
            prop_assert_eq!(&tokens[..], &pieces[..tokens.len()]);
        }
    }
}
