//! From the text of an answer to a message: thoughts and what is said, told apart while the text still comes.

use super::reasoning::Markers;

/// More of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// What is said.
    Content(String),
    /// What is thought first.
    Reasoning(String),
}

/// Reads one answer.
///
/// How the text is cut into pieces changes nothing in the deltas joined. A thought counts at the beginning of an answer
/// only, so that an answer may speak of its marks.
#[derive(Clone, Debug)]
pub struct Reader {
    state: State,
    markers: Option<Markers>,
    /// Text that may still belong to a mark.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but blanks so far: a thought may be opened.
    Start,
    /// A thought; its first line break is not part of it.
    ThoughtStart,
    Thought,
    /// Behind a thought; blank lines are not part of what is said.
    ContentStart,
    Content,
}

impl Reader {
    /// A reader for a model that marks its thoughts with `markers`. `thinking` says that the prompt has opened one.
    pub fn new(markers: Option<Markers>, thinking: bool) -> Self {
        let state = match (markers, thinking) {
            (Some(_), true) => State::ThoughtStart,
            (Some(_), false) => State::Start,
            (None, _) => State::Content,
        };
        Self { state, markers, held: String::new() }
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut deltas = Vec::new();
        while self.step(&mut deltas) {}
        deltas
    }

    /// The answer has ended: what was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        let rest = std::mem::take(&mut self.held);
        let mut deltas = Vec::new();
        match self.state {
            State::ThoughtStart | State::ContentStart if rest.trim().is_empty() => {}
            State::ThoughtStart | State::Thought => say(&mut deltas, Delta::Reasoning(rest.trim_end().to_owned())),
            State::Start | State::ContentStart | State::Content => say(&mut deltas, Delta::Content(rest)),
        }
        deltas
    }

    /// Does one thing with what is held; whether there may be another.
    fn step(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let Some(Markers { open, close }) = self.markers else {
            say(deltas, Delta::Content(std::mem::take(&mut self.held)));
            return false;
        };
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(open) {
                    self.held = rest.to_owned();
                    self.state = State::ThoughtStart;
                } else if open.starts_with(text) {
                    return false;
                } else {
                    self.state = State::Content;
                }
                true
            }
            State::ThoughtStart | State::ContentStart => {
                let blank = self.held.len() - self.held.trim_start().len();
                self.held.drain(..blank);
                if self.held.is_empty() {
                    return false;
                }
                self.state = if self.state == State::ThoughtStart { State::Thought } else { State::Content };
                true
            }
            State::Thought => {
                if let Some(end) = self.held.find(close) {
                    say(deltas, Delta::Reasoning(self.held[..end].trim_end().to_owned()));
                    self.held.drain(..end + close.len());
                    self.state = State::ContentStart;
                    return true;
                }
                // Blanks before the end of a thought are not part of it.
                let safe = self.held[..self.held.len() - partial(&self.held, close)].trim_end().len();
                say(deltas, Delta::Reasoning(self.held.drain(..safe).collect()));
                false
            }
            State::Content => {
                say(deltas, Delta::Content(std::mem::take(&mut self.held)));
                false
            }
        }
    }
}

fn say(deltas: &mut Vec<Delta>, delta: Delta) {
    let (Delta::Content(text) | Delta::Reasoning(text)) = &delta;
    if !text.is_empty() {
        deltas.push(delta);
    }
}

/// Bytes at the end of `text` that may become `mark`.
fn partial(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n])).unwrap_or(0)
}
