//! Grammars that hold an answer to calls, in llguidance's variant of Lark.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{
    python_json::dumps,
    reasoning::Markers,
    tools::{Tool, ToolFormat, is_text},
};

/// What an answer must look like for the sake of its calls.
#[derive(Clone, Copy, Debug)]
pub struct CallGrammar<'a> {
    /// How calls are written.
    pub format: ToolFormat,
    /// What may be called, at least one.
    pub tools: &'a [Tool],
    /// Whether there must be a call. Else there may be text instead, and text before a call.
    pub required: bool,
    /// Whether there may be several.
    pub parallel: bool,
    /// The mark that opens a call is in the prompt already.
    pub opened: bool,
    /// A call ends without its closing mark, which is a control token that no grammar reaches.
    pub unclosed: bool,
    /// Whether thoughts may come first.
    pub thought: Option<Thought>,
    /// What to say instead of a call: JSON of this schema rather than any text.
    pub answer: Option<&'a Value>,
}

/// Thoughts at the beginning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thought {
    /// Their marks.
    pub markers: Markers,
    /// Whether the prompt has opened one.
    pub opened: bool,
}

impl CallGrammar<'_> {
    /// The grammar.
    pub fn lark(&self) -> String {
        let mut rules = String::new();
        let thought = self.thought(&mut rules);
        let (first, next) = self.calls(&mut rules);
        let many = if self.parallel && !next.is_empty() { format!("{first} ({next})*") } else { first };
        let body = if self.required { many } else { self.or_text(&many, &mut rules) };
        format!("start: {thought}({body})\n{rules}")
    }

    /// A grammar for JSON of a schema behind a thought that the prompt has opened.
    pub fn json_behind(thought: Markers, schema: &Value) -> String {
        let mut rules = String::new();
        let thought = thought_rule(Thought { markers: thought, opened: true }, &mut rules);
        format!("start: {thought}answer\n{rules}answer: {}\n", json_rule(schema))
    }

    fn thought(&self, rules: &mut String) -> String {
        self.thought.map(|thought| thought_rule(thought, rules)).unwrap_or_default()
    }

    /// What the first call and each further one look like.
    fn calls(&self, rules: &mut String) -> (String, String) {
        let bodies: Vec<String> = (0..self.tools.len()).map(|i| format!("call{i}")).collect();
        for (i, tool) in self.tools.iter().enumerate() {
            let body = self.body(i, tool, rules);
            let _ = writeln!(rules, "call{i}: {body}");
        }
        let _ = writeln!(rules, "call: {}", bodies.join(" | "));
        let open = literal(self.format.open());
        // The mark of the first call may belong to what comes before it.
        let before = self.opened || (!self.required && self.answer.is_none());
        let mark = if before { String::new() } else { format!("{open} ") };
        match self.format {
            ToolFormat::Hermes | ToolFormat::Glm => (format!("{mark}call"), format!("\"\\n\" {open} call")),
            ToolFormat::Llama => ("call".to_owned(), "\"; \" call".to_owned()),
            // The list is one thing: brackets around calls.
            ToolFormat::MistralList => {
                let more = if self.parallel { " (\", \" call)*" } else { "" };
                let _ = writeln!(rules, "list: {mark}\"[\" call{more} \"]\"");
                ("list".to_owned(), String::new())
            }
            ToolFormat::MistralArgs => (format!("{mark}call"), format!("{open} call")),
        }
    }

    fn body(&self, i: usize, tool: &Tool, rules: &mut String) -> String {
        let name = dumps(&tool.name.as_str().into());
        let schema = Value::Object(tool.parameters.clone());
        let close = if self.unclosed { String::new() } else { literal(self.format.close()) };
        if self.format == ToolFormat::Glm {
            return self.glm(i, tool, &close, rules);
        }
        let _ = writeln!(rules, "args{i}: {}", json_rule(&object(schema)));
        let object =
            |arguments: &str| format!("{} args{i} \"}}\"", literal(&format!("{{\"name\": {name}, \"{arguments}\": ")));
        match self.format {
            ToolFormat::Hermes if self.unclosed => format!("\"\\n\" {}", object("arguments")),
            ToolFormat::Hermes => format!("\"\\n\" {} \"\\n\" {close}", object("arguments")),
            ToolFormat::Llama => object("parameters"),
            ToolFormat::MistralList | ToolFormat::Glm => object("arguments"),
            ToolFormat::MistralArgs if self.opened => format!("args{i}"),
            ToolFormat::MistralArgs => format!("{} args{i}", literal(&format!("{}[ARGS]", tool.name))),
        }
    }

    /// Arguments in the order of the schema, each by itself: those required, and those that may be left out.
    fn glm(&self, i: usize, tool: &Tool, close: &str, rules: &mut String) -> String {
        let none = Map::new();
        let properties = tool.parameters.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = tool.parameters.get("required").and_then(Value::as_array);
        let mut body = format!("{} nl{i}", literal(&tool.name));
        let _ = writeln!(rules, "nl{i}: \"\\n\"?");
        for (j, (key, schema)) in properties.iter().enumerate() {
            let value = match (is_text(schema), texts(schema)) {
                (true, Some(texts)) => {
                    let texts: Vec<String> =
                        texts.into_iter().map(|text| literal(&format!("{text}</arg_value>"))).collect();
                    format!("arg{i}x{j}: {}", texts.join(" | "))
                }
                (true, None) => format!("arg{i}x{j}[lazy]: /(.|\\n)*<\\/arg_value>/"),
                (false, _) => {
                    let _ = writeln!(rules, "json{i}x{j}: {}", json_rule(&with_definitions(schema, &tool.parameters)));
                    format!("arg{i}x{j}: json{i}x{j} \"</arg_value>\"")
                }
            };
            let _ = writeln!(rules, "{value}");
            let key_text = literal(&format!("<arg_key>{key}</arg_key>"));
            let argument = format!("{key_text} nl{i} \"<arg_value>\" arg{i}x{j} nl{i}");
            let is_required = required.is_some_and(|names| names.iter().any(|name| name == key));
            body.push_str(&if is_required { format!(" {argument}") } else { format!(" ({argument})?") });
        }
        format!("{body} {close}")
    }

    /// The calls, or text in their place or before them.
    fn or_text(&self, calls: &str, rules: &mut String) -> String {
        if let Some(schema) = self.answer {
            let _ = writeln!(rules, "answer: {}", json_rule(schema));
            return format!("answer | {calls}");
        }
        if self.format == ToolFormat::Llama {
            rules.push_str("TEXT: /([ \\t\\n]*[^{ \\t\\n](.|\\n)*)?/\n");
            return format!("TEXT | {calls}");
        }
        let open = regex(self.format.open());
        // A thought that is opened must be one.
        let no_thought = self
            .thought
            .filter(|thought| !thought.opened)
            .map_or(String::new(), |thought| format!(" & ~/[ \\t\\n]*{}(.|\\n)*/", regex(thought.markers.open)));
        let _ = writeln!(rules, "before[lazy]: /(.|\\n)*{open}/{no_thought}");
        let _ = writeln!(rules, "TEXT: /(.|\\n)*/ & ~/(.|\\n)*{open}(.|\\n)*/");
        format!("TEXT | before {calls}")
    }
}

fn thought_rule(thought: Thought, rules: &mut String) -> String {
    let (open, close) = (regex(thought.markers.open), regex(thought.markers.close));
    let open = if thought.opened { String::new() } else { format!("[ \\t\\n]{{0,4}}{open}") };
    let _ = writeln!(rules, "thought[lazy]: /{open}(.|\\n)*{close}/");
    rules.push_str("behind: /[ \\t\\n]{1,4}/\n");
    if thought.opened { "thought behind? ".to_owned() } else { "(thought behind?)? ".to_owned() }
}

/// A JSON value of this schema.
fn json_rule(schema: &Value) -> String {
    format!("%json {schema}")
}

/// Arguments are an object, even if the schema forgets to say so.
fn object(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.entry("type").or_insert("object".into());
    }
    schema
}

/// The texts that a schema lists, if it does.
fn texts(schema: &Value) -> Option<Vec<&str>> {
    if let Some(text) = schema.get("const").and_then(Value::as_str) {
        return Some(vec![text]);
    }
    schema.get("enum")?.as_array()?.iter().map(Value::as_str).collect()
}

/// The schema of one property, with the definitions that it may refer to.
fn with_definitions(schema: &Value, root: &Map<String, Value>) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        for name in ["$defs", "definitions"] {
            if let (Some(definitions), false) = (root.get(name), object.contains_key(name)) {
                object.insert(name.into(), definitions.clone());
            }
        }
    }
    schema
}

/// A text as a Lark string, which is written like a JSON string.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text as a regular expression.
fn regex(text: &str) -> String {
    let mut regex = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if c.is_ascii_punctuation() && !matches!(c, '<' | '>' | '_') {
            regex.push('\\');
        }
        regex.push(c);
    }
    regex
}
