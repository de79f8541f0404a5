//! The text of a GBNF grammar as a tree.

use std::{collections::HashMap, iter::Peekable, str::CharIndices};

use crate::grammar::{GrammarError, shown};

/// Groups inside groups at most.
const MAX_NESTING: usize = 64;

/// Rules at most.
const MAX_RULES: usize = 1000;

/// Repetitions at most, where a number is given.
const MAX_REPEAT: u32 = 2000;

/// Rules by index; the references in them are such indices.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) bodies: Vec<Node>,
    pub(super) names: Vec<String>,
    /// Index of `root`.
    pub(super) root: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Literal(String),
    /// One character inside (or, when negated, outside) the ranges.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    Any,
    Rule(usize),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    /// At least and at most so often; `None`: without end.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Whether `text` is meant as GBNF: a line of it defines a rule with `::=`.
pub(in crate::grammar) fn is_gbnf(text: &str) -> bool {
    let defines = |line: &str| {
        line.split_once("::=").is_some_and(|(name, _)| {
            let name = name.trim();
            !name.is_empty() && name.chars().all(is_name)
        })
    };
    text.lines().any(defines)
}

pub(super) fn parse(text: &str) -> Result<Rules, GrammarError> {
    let mut parser = Parser { text, chars: text.char_indices().peekable(), nesting: 0, names: HashMap::new() };
    let mut bodies: Vec<Option<Node>> = Vec::new();
    parser.space();
    while parser.chars.peek().is_some() {
        let name = parser.name()?;
        parser.space();
        if !parser.take_word("::=") {
            return Err(parser.fault(&format!("expected `::=` behind `{}`", shown(name))));
        }
        parser.space();
        let index = parser.index(name)?;
        let body = parser.alternatives()?;
        bodies.resize(bodies.len().max(parser.names.len()), None);
        match bodies.get_mut(index) {
            Some(slot @ None) => *slot = Some(body),
            _ => return Err(invalid(format!("the rule `{}` is defined twice", shown(name)))),
        }
    }
    let undefined = parser.names.iter().find(|(_, index)| !matches!(bodies.get(**index), Some(Some(_))));
    if let Some((name, _)) = undefined {
        return Err(invalid(format!("the rule `{}` is not defined", shown(name))));
    }
    let root = parser.names.get("root").copied();
    let root = root.ok_or_else(|| invalid("there is no rule `root`".into()))?;
    let mut names: Vec<(usize, &str)> = parser.names.into_iter().map(|(name, index)| (index, name)).collect();
    names.sort_unstable();
    let names = names.into_iter().map(|(_, name)| name.to_owned()).collect();
    Ok(Rules { bodies: bodies.into_iter().flatten().collect(), names, root })
}

fn invalid(message: String) -> GrammarError {
    GrammarError::Invalid(format!("GBNF: {message}"))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    nesting: usize,
    names: HashMap<&'a str, usize>,
}

impl<'a> Parser<'a> {
    fn fault(&mut self, message: &str) -> GrammarError {
        let at = self.at();
        let line = 1 + self.text[..at].matches('\n').count();
        invalid(format!("line {line}: {message}"))
    }

    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |&(at, _)| at)
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|&(_, c)| c)
    }

    fn take(&mut self, wanted: char) -> bool {
        self.chars.next_if(|&(_, c)| c == wanted).is_some()
    }

    fn take_word(&mut self, word: &str) -> bool {
        let at = self.at();
        let found = self.text[at..].starts_with(word);
        if found {
            self.chars.nth(word.len() - 1);
        }
        found
    }

    /// White space, line breaks and comments.
    fn space(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.chars.next_if(|&(_, c)| c != '\n').is_some() {}
            } else if c.is_whitespace() {
                self.chars.next();
            } else {
                return;
            }
        }
    }

    fn name(&mut self) -> Result<&'a str, GrammarError> {
        let start = self.at();
        while self.chars.next_if(|&(_, c)| is_name(c)).is_some() {}
        let end = self.at();
        if start == end {
            let found = self.peek().map_or("the end".into(), |c| format!("`{}`", shown(&c.to_string())));
            return Err(self.fault(&format!("expected the name of a rule, found {found}")));
        }
        Ok(&self.text[start..end])
    }

    fn index(&mut self, name: &'a str) -> Result<usize, GrammarError> {
        let next = self.names.len();
        let index = *self.names.entry(name).or_insert(next);
        if index >= MAX_RULES {
            return Err(GrammarError::TooLarge(format!("it has more than {MAX_RULES} rules")));
        }
        Ok(index)
    }

    fn alternatives(&mut self) -> Result<Node, GrammarError> {
        let mut options = vec![self.sequence()?];
        while self.take('|') {
            self.space();
            options.push(self.sequence()?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Alt(options) })
    }

    /// Up to `|`, `)`, the end, or the next rule: a name with `::=` behind it.
    fn sequence(&mut self) -> Result<Node, GrammarError> {
        let mut parts = Vec::new();
        loop {
            let part = match self.peek() {
                None | Some('|' | ')') => break,
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => self.group()?,
                Some('.') => {
                    self.chars.next();
                    Node::Any
                }
                Some('<' | '!') => return Err(self.fault("tokens (`<...>`) are not supported, only text is")),
                Some(_) => {
                    let before = self.chars.clone();
                    let name = self.name()?;
                    self.space();
                    let at = self.at();
                    if self.text[at..].starts_with("::=") {
                        self.chars = before;
                        break;
                    }
                    Node::Rule(self.index(name)?)
                }
            };
            self.space();
            parts.push(self.repeated(part)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Seq(parts) })
    }

    /// What stands behind a part: `*`, `+`, `?` or `{m,n}`.
    fn repeated(&mut self, mut part: Node) -> Result<Node, GrammarError> {
        let mut marks = 0;
        loop {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.braces()?,
                _ => return Ok(part),
            };
            self.chars.next();
            self.space();
            marks += 1;
            if marks > 2 {
                return Err(self.fault("more than two repetitions of one part"));
            }
            part = Node::Repeat(Box::new(part), least, most);
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`, up to the closing brace.
    fn braces(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.chars.next();
        let least = self.number()?;
        let most = if self.take(',') {
            if self.peek().is_some_and(|c| c.is_ascii_digit()) { Some(self.number()?) } else { None }
        } else {
            Some(least)
        };
        if most.is_some_and(|most| most < least) {
            return Err(self.fault("a repetition that may occur less often than it must"));
        }
        if self.peek() == Some('}') { Ok((least, most)) } else { Err(self.fault("expected `}`")) }
    }

    fn number(&mut self) -> Result<u32, GrammarError> {
        let start = self.at();
        while self.chars.next_if(|&(_, c)| c.is_ascii_digit()).is_some() {}
        let end = self.at();
        match self.text[start..end].parse() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            Ok(_) => Err(self.fault(&format!("more than {MAX_REPEAT} repetitions"))),
            Err(_) => Err(self.fault(&format!("expected a number up to {MAX_REPEAT}"))),
        }
    }

    fn group(&mut self) -> Result<Node, GrammarError> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(GrammarError::TooLarge(format!("more than {MAX_NESTING} groups inside one another")));
        }
        self.chars.next();
        self.space();
        let inner = self.alternatives()?;
        if !self.take(')') {
            return Err(self.fault("expected `)`"));
        }
        self.nesting -= 1;
        Ok(inner)
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.chars.next();
        let mut literal = String::new();
        while !self.take('"') {
            literal.push(self.char()?);
        }
        Ok(Node::Literal(literal))
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.chars.next();
        let negated = self.take('^');
        let mut ranges = Vec::new();
        while !self.take(']') {
            let first = self.char()?;
            let dash = self.text[self.at()..].starts_with('-') && !self.text[self.at()..].starts_with("-]");
            let last = if dash {
                self.chars.next();
                self.char()?
            } else {
                first
            };
            if last < first {
                return Err(self.fault("a range of characters that ends before it begins"));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return Err(self.fault("a class without characters"));
        }
        Ok(Node::Class { ranges, negated })
    }

    /// A character, possibly escaped.
    fn char(&mut self) -> Result<char, GrammarError> {
        let open = "a literal or class without an end";
        let (_, c) = self.chars.next().ok_or_else(|| invalid(open.into()))?;
        if c != '\\' {
            return Ok(c);
        }
        let (_, c) = self.chars.next().ok_or_else(|| invalid(open.into()))?;
        let digits = match c {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(self.fault(&format!("unknown escape `\\{}`", shown(&c.to_string())))),
        };
        let start = self.at();
        let mut end = start;
        while end < start + digits && self.chars.next_if(|(_, c)| c.is_ascii_hexdigit()).is_some() {
            end += 1;
        }
        let code = if end - start == digits { u32::from_str_radix(&self.text[start..end], 16).ok() } else { None };
        code.and_then(char::from_u32)
            .ok_or_else(|| self.fault(&format!("`\\{c}` needs {digits} hexadecimal digits of a character")))
    }
}
