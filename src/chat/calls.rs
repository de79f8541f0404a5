//! Reads one call while its text comes: the name, and the arguments as a growing JSON text.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    python_json::dumps,
    tools::{Tool, ToolFormat, is_text},
};

/// The text is not a call; it begins to be something else behind so many bytes of all that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoCall(pub(super) usize);

/// What a character does to a value.
struct Broken;

/// One call in one of the formats, from behind its opening mark.
#[derive(Clone, Debug)]
pub(super) enum Scanner {
    /// An object with `name` and `arguments` or `parameters`.
    Object(Object),
    /// `name[ARGS]{…}`.
    Args(Args),
    /// `name<arg_key>…`.
    Glm(Glm),
}

impl Scanner {
    pub(super) fn new(format: ToolFormat, tools: &Arc<[Tool]>) -> Self {
        match format {
            ToolFormat::Hermes | ToolFormat::Llama | ToolFormat::MistralList => Self::Object(Object::default()),
            ToolFormat::MistralArgs => Self::Args(Args::default()),
            ToolFormat::Glm => Self::Glm(Glm { tools: tools.clone(), ..Glm::default() }),
        }
    }

    /// Takes text. How much of it belongs to the call, once the call is complete; `None` while more is needed, all of
    /// the text having been taken.
    pub(super) fn push(&mut self, text: &str) -> Result<Option<usize>, NoCall> {
        match self {
            Self::Object(object) => object.push(text),
            Self::Args(args) => args.push(text),
            Self::Glm(glm) => glm.push(text),
        }
    }

    /// The function, once known.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Object(object) => object.name.as_deref(),
            Self::Args(args) => args.name.as_deref(),
            Self::Glm(glm) => glm.name.as_deref(),
        }
    }

    /// JSON of the arguments as far as it has come; it only grows.
    pub(super) fn arguments(&self) -> &str {
        match self {
            Self::Object(object) => &object.arguments,
            Self::Args(args) => &args.arguments,
            Self::Glm(glm) => &glm.arguments,
        }
    }
}

/// Follows a JSON value to its end.
#[derive(Clone, Debug, Default)]
struct Depth {
    brackets: usize,
    in_string: bool,
    escaped: bool,
}

impl Depth {
    /// Takes a character of an object or array; whether it was the last one.
    fn is_end(&mut self, c: char) -> bool {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.brackets += 1,
            '}' | ']' => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        self.brackets == 0 && matches!(c, '}' | ']')
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    place: Place,
    name: Option<String>,
    arguments: String,
    has_arguments: bool,
    /// The key or value that is being read, as written.
    raw: String,
    key: String,
    depth: Depth,
    /// Bytes taken.
    taken: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Open,
    /// Before a key or the end.
    Key,
    InKey,
    Colon,
    Value,
    InString,
    InComposite,
    InScalar,
    /// Behind a value.
    Comma,
}

impl Object {
    fn push(&mut self, text: &str) -> Result<Option<usize>, NoCall> {
        for (at, c) in text.char_indices() {
            let taken = self.taken;
            let has_ended = self.step(c).map_err(|Broken| NoCall(taken))?;
            self.taken += c.len_utf8();
            if has_ended {
                if self.name.is_none() {
                    return Err(NoCall(self.taken));
                }
                if !self.has_arguments {
                    self.arguments = "{}".to_owned();
                }
                return Ok(Some(at + c.len_utf8()));
            }
        }
        Ok(None)
    }

    /// Whether the object has ended.
    fn step(&mut self, c: char) -> Result<bool, Broken> {
        let blank = matches!(c, ' ' | '\n' | '\r' | '\t');
        match (self.place, c) {
            (Place::Open | Place::Key | Place::Colon | Place::Value | Place::Comma, _) if blank => {}
            (Place::Open, '{') => self.place = Place::Key,
            (Place::Key | Place::Comma, '}') => return Ok(true),
            (Place::Key, '"') => self.begin(Place::InKey, c),
            (Place::InKey, _) => {
                if self.string_ends(c) {
                    self.key = serde_json::from_str(&self.raw).map_err(|_| Broken)?;
                    self.place = Place::Colon;
                }
            }
            (Place::Colon, ':') => self.place = Place::Value,
            (Place::Value, '"') => self.begin(Place::InString, c),
            (Place::Value, '{' | '[') => {
                self.begin(Place::InComposite, c);
                self.depth = Depth::default();
                self.depth.is_end(c);
                self.stream(c);
            }
            (Place::Value, _) => self.begin(Place::InScalar, c),
            (Place::InString, _) => {
                if self.string_ends(c) {
                    self.end_value()?;
                }
            }
            (Place::InComposite, _) => {
                self.raw.push(c);
                self.stream(c);
                if self.depth.is_end(c) {
                    self.end_value()?;
                }
            }
            (Place::InScalar, ',' | '}') => {
                self.end_value()?;
                return self.step(c);
            }
            (Place::InScalar, _) => self.raw.push(c),
            (Place::Comma, ',') => self.place = Place::Key,
            _ => return Err(Broken),
        }
        Ok(false)
    }

    fn begin(&mut self, place: Place, c: char) {
        self.place = place;
        self.raw.clear();
        self.raw.push(c);
    }

    /// Takes a character of a string.
    fn string_ends(&mut self, c: char) -> bool {
        let escaped = self.raw.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1;
        self.raw.push(c);
        c == '"' && !escaped
    }

    /// Arguments that are an object go out as they come.
    fn stream(&mut self, c: char) {
        if self.is_arguments() {
            self.has_arguments = true;
            self.arguments.push(c);
        }
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    fn end_value(&mut self) -> Result<(), Broken> {
        let value: Value = serde_json::from_str(self.raw.trim_end()).map_err(|_| Broken)?;
        match (self.key.as_str(), value) {
            ("name", Value::String(name)) => self.name = Some(name),
            ("name", _) => return Err(Broken),
            (_, Value::Object(_)) => {}
            // Some models write the JSON of the arguments as a string once more, or null for none.
            (_, Value::String(text)) if self.is_arguments() => {
                serde_json::from_str::<Map<String, Value>>(&text).map_err(|_| Broken)?;
                (self.arguments, self.has_arguments) = (text, true);
            }
            (_, Value::Null) => {}
            _ if self.is_arguments() => return Err(Broken),
            _ => {}
        }
        self.place = Place::Comma;
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    /// What stands before the arguments.
    head: String,
    name: Option<String>,
    arguments: String,
    depth: Depth,
    /// Bytes taken.
    taken: usize,
}

impl Args {
    const MARK: &str = "[ARGS]";
    const ID: &str = "[CALL_ID]";
    /// Longest head, bytes.
    const MOST: usize = 512;

    fn push(&mut self, text: &str) -> Result<Option<usize>, NoCall> {
        for (at, c) in text.char_indices() {
            let taken = self.taken;
            self.taken += c.len_utf8();
            if self.name.is_none() {
                self.head.push(c);
                if let Some(head) = self.head.strip_suffix(Self::MARK) {
                    self.name = head.split(Self::ID).next().map(|name| name.trim().to_owned());
                } else if self.head.len() > Self::MOST {
                    return Err(NoCall(self.taken));
                }
                continue;
            }
            match (self.arguments.is_empty(), c) {
                (true, ' ' | '\n') => continue,
                (true, '{') | (false, _) => self.arguments.push(c),
                (true, _) => return Err(NoCall(taken)),
            }
            if self.depth.is_end(c) {
                return Ok(Some(at + c.len_utf8()));
            }
        }
        Ok(None)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Glm {
    tools: Arc<[Tool]>,
    held: String,
    /// Bytes of `held` that are done with.
    done: usize,
    name: Option<String>,
    arguments: String,
}

impl Glm {
    const KEY: [&str; 2] = ["<arg_key>", "</arg_key>"];
    const VALUE: [&str; 2] = ["<arg_value>", "</arg_value>"];
    const END: &str = "</tool_call>";

    fn push(&mut self, text: &str) -> Result<Option<usize>, NoCall> {
        let before = self.held.len();
        self.held.push_str(text);
        loop {
            let rest = &self.held[self.done..];
            let (key, end) = (rest.find(Self::KEY[0]), rest.find(Self::END));
            let Some(place) = key.into_iter().chain(end).min() else { return Ok(None) };
            if self.name.is_none() {
                self.name = Some(rest[..place].trim().to_owned());
                self.arguments.push('{');
                self.done += place;
                continue;
            } else if !rest[..place].trim().is_empty() {
                return Err(NoCall(self.done));
            }
            if key != Some(place) {
                self.arguments.push('}');
                return Ok(Some(self.done + place + Self::END.len() - before));
            }
            let Some((key, behind)) = rest[place + Self::KEY[0].len()..].split_once(Self::KEY[1]) else {
                return Ok(None);
            };
            let behind = behind.trim_start();
            let fault = NoCall(self.held.len() - behind.len());
            let Some(behind) = behind.strip_prefix(Self::VALUE[0]) else {
                return if Self::VALUE[0].starts_with(behind) { Ok(None) } else { Err(fault) };
            };
            let Some((value, behind)) = behind.split_once(Self::VALUE[1]) else { return Ok(None) };
            let comma = if self.arguments.len() > 1 { ", " } else { "" };
            let value = self.typed(key.trim(), value);
            let pair = format!("{comma}{}: {}", dumps(&key.trim().into()), dumps(&value));
            self.done = self.held.len() - behind.len();
            self.arguments.push_str(&pair);
        }
    }

    /// Text stays text where the tool wants text; else it is JSON if it can be.
    fn typed(&self, key: &str, value: &str) -> Value {
        let tool = self.tools.iter().find(|tool| Some(tool.name.as_str()) == self.name.as_deref());
        let schema = tool.and_then(|tool| tool.parameters.get("properties")?.get(key));
        match serde_json::from_str(value.trim()) {
            Ok(json) if !schema.is_some_and(is_text) => json,
            _ => value.into(),
        }
    }
}
