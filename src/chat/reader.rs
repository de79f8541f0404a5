//! From the text of an answer to a message: thoughts, what is said, and calls, told apart while the text still comes.

use std::sync::Arc;

use super::{
    calls::{NoCall, Scanner},
    reasoning::Markers,
    tools::{Tool, ToolFormat},
};

/// More of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// What is said.
    Content(String),
    /// What is thought first.
    Reasoning(String),
    /// A call of this function begins.
    Call(String),
    /// More of the arguments of the last call: pieces of one JSON text.
    Arguments(String),
}

/// Calls that an answer may hold.
#[derive(Clone, Debug)]
pub struct Calls {
    /// How they are written.
    pub format: ToolFormat,
    /// What can be called.
    pub tools: Arc<[Tool]>,
    /// Whether a grammar sees to it that a call, once begun, is one: its parts are then told as they come. Else it is told
    /// when it is complete, and what turns out to be none is part of what is said.
    pub guided: bool,
    /// Whether there may be several; those behind the first are left out.
    pub parallel: bool,
}

/// Reads one answer.
///
/// How the text is cut into pieces changes nothing in the deltas joined. A thought counts at the beginning of an answer
/// only, so that an answer may speak of its marks.
#[derive(Clone, Debug)]
pub struct Reader {
    state: State,
    markers: Option<Markers>,
    calls: Option<Calls>,
    /// Calls that have begun and are told.
    told: usize,
    /// Text that may still belong to a mark.
    held: String,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but blanks so far: a thought may be opened.
    Start,
    /// A thought; blanks at its beginning are not part of it.
    ThoughtStart,
    Thought,
    /// Behind a thought; blanks are not part of what is said.
    ContentStart,
    /// The first of what is said.
    Opening,
    Content,
    /// Between calls of a list, or before its first.
    List,
    Call(Box<Call>),
    /// Behind a call, whose closing mark may follow.
    Closing,
    /// Behind a call and its mark.
    Between,
    /// Nothing more counts.
    Over,
}

#[derive(Clone, Debug)]
struct Call {
    scanner: Scanner,
    /// Its text so far, with the opening mark.
    text: String,
    /// Bytes of that mark.
    mark: usize,
    /// Whether its name has been told.
    begun: bool,
    /// Bytes of its arguments that have been told.
    told: usize,
}

impl Reader {
    /// A reader for a model that marks its thoughts with `markers`. `thinking` says that the prompt has opened one.
    pub fn new(markers: Option<Markers>, thinking: bool, calls: Option<Calls>) -> Self {
        let state = match (markers, thinking) {
            (Some(_), true) => State::ThoughtStart,
            (Some(_), false) => State::Start,
            (None, _) => State::Opening,
        };
        Self { state, markers, calls, told: 0, held: String::new() }
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
        match std::mem::replace(&mut self.state, State::Over) {
            State::ThoughtStart | State::Thought => say(&mut deltas, Delta::Reasoning(rest.trim_end().to_owned())),
            State::ContentStart => say(&mut deltas, Delta::Content(rest.trim_start().to_owned())),
            State::Start | State::Opening | State::Content => say(&mut deltas, Delta::Content(rest)),
            State::Call(call) if !call.begun => say(&mut deltas, Delta::Content(call.text + &rest)),
            State::List if self.told == 0 => say(&mut deltas, Delta::Content(self.open().to_owned() + &rest)),
            State::Closing | State::Between if !self.is_mark(rest.trim()) => say(&mut deltas, Delta::Content(rest)),
            State::Call(_) | State::List | State::Closing | State::Between | State::Over => {}
        }
        deltas
    }

    /// Whether `text` is the beginning of a mark that belongs behind a call, or nothing.
    fn is_mark(&self, text: &str) -> bool {
        self.open().starts_with(text) || self.close().starts_with(text) || text == ";"
    }

    fn format(&self) -> Option<ToolFormat> {
        self.calls.as_ref().map(|calls| calls.format)
    }

    fn open(&self) -> &'static str {
        self.format().map_or("", ToolFormat::open)
    }

    fn close(&self) -> &'static str {
        self.format().map_or("", ToolFormat::close)
    }

    /// Does one thing with what is held; whether there may be another.
    fn step(&mut self, deltas: &mut Vec<Delta>) -> bool {
        match &mut self.state {
            State::Start => self.start(),
            State::ThoughtStart | State::ContentStart => {
                let blank = self.held.len() - self.held.trim_start().len();
                self.held.drain(..blank);
                if self.held.is_empty() {
                    return false;
                }
                let thinks = matches!(self.state, State::ThoughtStart);
                self.state = if thinks { State::Thought } else { State::Opening };
                true
            }
            State::Thought => self.thought(deltas),
            State::Opening => self.opening(),
            State::Content => self.content(deltas),
            State::List => self.list(deltas),
            State::Call(_) => self.call(deltas),
            State::Closing => self.closing(),
            State::Between => self.between(),
            State::Over => {
                self.held.clear();
                false
            }
        }
    }

    fn start(&mut self) -> bool {
        let open = self.markers.map_or("", |markers| markers.open);
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(open) {
            self.held = rest.to_owned();
            self.state = State::ThoughtStart;
        } else if open.starts_with(text) {
            return false;
        } else {
            self.state = State::Opening;
        }
        true
    }

    fn thought(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let close = self.markers.map_or("", |markers| markers.close);
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

    /// A format whose calls have no mark of their own has them at the beginning only.
    fn opening(&mut self) -> bool {
        let text = self.held.trim_start();
        let tag = self.open();
        if self.format() != Some(ToolFormat::Llama) {
            self.state = State::Content;
        } else if text.is_empty() || (tag.starts_with(text) && text != tag) {
            return false;
        } else if text.starts_with('{') {
            self.state = State::Call(Box::new(self.begin("")));
        } else if let Some(rest) = text.strip_prefix(tag) {
            self.held = rest.to_owned();
            self.state = State::Call(Box::new(self.begin(tag)));
        } else {
            self.state = State::Content;
        }
        true
    }

    fn content(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let open = match self.format() {
            None | Some(ToolFormat::Llama) => {
                say(deltas, Delta::Content(std::mem::take(&mut self.held)));
                return false;
            }
            Some(format) => format.open(),
        };
        if let Some(place) = self.held.find(open) {
            say(deltas, Delta::Content(self.held[..place].trim_end().to_owned()));
            self.held.drain(..place + open.len());
            self.state = self.behind_mark(open);
            return true;
        }
        // Blanks before a call are not part of what is said.
        let safe = self.held[..self.held.len() - partial(&self.held, open)].trim_end().len();
        say(deltas, Delta::Content(self.held.drain(..safe).collect()));
        false
    }

    fn behind_mark(&self, open: &str) -> State {
        match self.format() {
            Some(ToolFormat::MistralList) => State::List,
            _ => State::Call(Box::new(self.begin(open))),
        }
    }

    fn begin(&self, mark: &str) -> Call {
        let (format, tools) = match &self.calls {
            Some(calls) => (calls.format, calls.tools.clone()),
            None => (ToolFormat::Hermes, Arc::default()),
        };
        Call { scanner: Scanner::new(format, &tools), text: mark.to_owned(), mark: mark.len(), begun: false, told: 0 }
    }

    /// `[`, or `,` or `]` behind a call.
    fn list(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let text = self.held.trim_start();
        let (first, behind) = match text.chars().next() {
            None => return false,
            Some(first) => (first, text[first.len_utf8()..].to_owned()),
        };
        match (first, self.told) {
            ('[', 0) | (',', 1..) => {
                let mark = if self.told == 0 { format!("{}[", self.open()) } else { String::new() };
                let parallel = self.calls.as_ref().is_some_and(|calls| calls.parallel);
                let call = State::Call(Box::new(self.begin(&mark)));
                self.state = if self.told == 0 || parallel { call } else { State::Over };
                self.held = behind;
            }
            (']', 1..) => {
                self.state = State::Between;
                self.held = behind;
            }
            _ => {
                if self.told == 0 {
                    say(deltas, Delta::Content(self.open().to_owned()));
                }
                self.state = State::Content;
            }
        }
        true
    }

    fn call(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let (State::Call(call), Some(calls)) = (&mut self.state, &self.calls) else { return false };
        if self.held.is_empty() {
            return false;
        }
        let text = std::mem::take(&mut self.held);
        match call.scanner.push(&text) {
            Ok(None) => {
                call.text.push_str(&text);
                if calls.guided {
                    self.told += call.tell(deltas);
                }
                false
            }
            Ok(Some(end)) if calls.guided || call.is_sound(&calls.tools) => {
                self.told += call.tell(deltas);
                text[end..].clone_into(&mut self.held);
                self.state = if calls.format == ToolFormat::MistralList { State::List } else { State::Closing };
                true
            }
            outcome => {
                // Not a call: it was said. What may belong to another one is looked at again.
                let mut all = std::mem::take(&mut call.text);
                let end = match outcome {
                    Err(NoCall(end)) => call.mark + end,
                    Ok(end) => all.len() + end.unwrap_or(text.len()),
                };
                all.push_str(&text);
                self.held = all.split_off(end.min(all.len()));
                if !call.begun {
                    say(deltas, Delta::Content(all));
                }
                self.state = State::Content;
                true
            }
        }
    }

    fn closing(&mut self) -> bool {
        let (text, close) = (self.held.trim_start(), self.close());
        // Without a closing mark the blanks are left for whatever comes next.
        if !close.is_empty() {
            if let Some(rest) = text.strip_prefix(close) {
                self.held = rest.to_owned();
            } else if close.starts_with(text) {
                return false;
            }
        }
        self.state = State::Between;
        true
    }

    fn between(&mut self) -> bool {
        let text = self.held.trim_start();
        let llama = self.format() == Some(ToolFormat::Llama);
        let open = if llama { "{" } else { self.open() };
        let text = if llama { text.trim_start_matches(';').trim_start() } else { text };
        if let Some(rest) = text.strip_prefix(open) {
            let parallel = self.calls.as_ref().is_some_and(|calls| calls.parallel);
            let (rest, mark) = if llama { (text.to_owned(), "") } else { (rest.to_owned(), open) };
            self.state = if parallel { self.behind_mark(mark) } else { State::Over };
            self.held = rest;
        } else if open.starts_with(text) {
            return false;
        } else {
            self.state = State::Content;
        }
        true
    }
}

impl Call {
    /// Whether it calls something that is there, with an object for arguments.
    fn is_sound(&self, tools: &[Tool]) -> bool {
        let known = self.scanner.name().is_some_and(|name| tools.iter().any(|tool| tool.name == name));
        known && serde_json::from_str::<serde_json::Map<_, _>>(self.scanner.arguments()).is_ok()
    }

    /// Tells what has not been told. Returns 1 when that was its name, which begins it.
    fn tell(&mut self, deltas: &mut Vec<Delta>) -> usize {
        let Some(name) = self.scanner.name() else { return 0 };
        let begins = !std::mem::replace(&mut self.begun, true);
        if begins {
            deltas.push(Delta::Call(name.to_owned()));
        }
        let arguments = self.scanner.arguments();
        say(deltas, Delta::Arguments(arguments.get(self.told..).unwrap_or_default().to_owned()));
        self.told = arguments.len();
        usize::from(begins)
    }
}

fn say(deltas: &mut Vec<Delta>, delta: Delta) {
    let (Delta::Content(text) | Delta::Reasoning(text) | Delta::Call(text) | Delta::Arguments(text)) = &delta;
    if !text.is_empty() {
        deltas.push(delta);
    }
}

/// Bytes at the end of `text` that may become `mark`.
fn partial(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n])).unwrap_or(0)
}
