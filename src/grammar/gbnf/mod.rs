//! GBNF, the notation of llama.cpp, turned into Lark.
//!
//! llguidance separates words (*terminals*, regular expressions, matched as far as they reach) from rules, GBNF does not.
//! A rule that does not refer to itself, directly or through others, becomes a terminal as a whole, and so do the longest
//! stretches without such a rule inside the others. So a grammar without recursion means exactly the same, and one with it
//! the same as long as no stretch must end early for what follows it. Where it must, fewer texts are possible than in
//! llama.cpp, never more.

mod parse;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, fmt::Write as _};

use self::parse::{Node, Rules};
use crate::grammar::{GrammarError, shown};

pub(super) use self::parse::is_gbnf;

/// The Lark grammar of a GBNF text.
///
/// # Errors
/// When it is not GBNF, or uses what cannot be expressed.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::parse(text)?;
    let reachable = reachable(&rules);
    let ending = ending(&rules);
    if let Some(&index) = reachable.iter().find(|index| !ending[**index]) {
        let name = shown(&rules.names[index]);
        return Err(GrammarError::Invalid(format!("GBNF: no text of the rule `{name}` ever ends")));
    }
    let kinds = Kinds::of(&rules);
    let mut lark = Lark { kinds, stretches: HashMap::new(), text: String::new() };
    for index in reachable {
        let body = &rules.bodies[index];
        let (name, body) = if lark.kinds.regular[index] {
            (format!("T{index}"), lark.terminal(body))
        } else {
            (format!("r{index}"), lark.rule(body))
        };
        let _ = writeln!(lark.text, "{name}: {body}");
    }
    let start = lark.rule(&Node::Rule(rules.root));
    Ok(format!("start: {start}\n{}", lark.text))
}

/// What each rule is.
struct Kinds {
    /// It cannot lead back to itself, nor to a rule that can.
    regular: Vec<bool>,
    /// Regular, and nothing but the empty text matches.
    empty: Vec<bool>,
}

impl Kinds {
    fn of(rules: &Rules) -> Self {
        let n = rules.bodies.len();
        let mut kinds = Self { regular: vec![false; n], empty: vec![false; n] };
        // Each round settles at least one rule, or is the last.
        loop {
            let mut changed = false;
            for (index, body) in rules.bodies.iter().enumerate() {
                if !kinds.regular[index] && kinds.is_regular(body) {
                    kinds.regular[index] = true;
                    kinds.empty[index] = kinds.is_empty(body);
                    changed = true;
                }
            }
            if !changed {
                return kinds;
            }
        }
    }

    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Literal(_) | Node::Class { .. } | Node::Any => true,
            Node::Rule(index) => self.regular[*index],
            Node::Seq(nodes) | Node::Alt(nodes) => nodes.iter().all(|node| self.is_regular(node)),
            Node::Repeat(node, ..) => self.is_regular(node),
        }
    }

    fn is_empty(&self, node: &Node) -> bool {
        match node {
            Node::Literal(text) => text.is_empty(),
            Node::Class { .. } | Node::Any => false,
            Node::Rule(index) => self.empty[*index],
            Node::Seq(nodes) | Node::Alt(nodes) => nodes.iter().all(|node| self.is_empty(node)),
            Node::Repeat(node, _, most) => *most == Some(0) || self.is_empty(node),
        }
    }
}

/// Whether there is a text for each rule, that is, a way through it that does not lead back into it for ever. Without one
/// an answer might come to a place where nothing can follow.
fn ending(rules: &Rules) -> Vec<bool> {
    fn ends(node: &Node, known: &[bool]) -> bool {
        match node {
            Node::Literal(_) | Node::Class { .. } | Node::Any => true,
            Node::Rule(index) => known[*index],
            Node::Seq(nodes) => nodes.iter().all(|node| ends(node, known)),
            Node::Alt(nodes) => nodes.iter().any(|node| ends(node, known)),
            Node::Repeat(node, least, _) => *least == 0 || ends(node, known),
        }
    }
    let mut known = vec![false; rules.bodies.len()];
    loop {
        let next: Vec<bool> = rules.bodies.iter().map(|body| ends(body, &known)).collect();
        if next == known {
            return known;
        }
        known = next;
    }
}

/// Indices of the rules that `root` leads to.
fn reachable(rules: &Rules) -> Vec<usize> {
    let mut seen = vec![false; rules.bodies.len()];
    let mut open = vec![rules.root];
    while let Some(index) = open.pop() {
        if !std::mem::replace(&mut seen[index], true) {
            references(&rules.bodies[index], &mut open);
        }
    }
    (0..seen.len()).filter(|&index| seen[index]).collect()
}

fn references(node: &Node, found: &mut Vec<usize>) {
    match node {
        Node::Literal(_) | Node::Class { .. } | Node::Any => {}
        Node::Rule(index) => found.push(*index),
        Node::Seq(nodes) | Node::Alt(nodes) => nodes.iter().for_each(|node| references(node, found)),
        Node::Repeat(node, ..) => references(node, found),
    }
}

struct Lark {
    kinds: Kinds,
    /// Terminals made for stretches of rules, by their text.
    stretches: HashMap<String, usize>,
    text: String,
}

impl Lark {
    /// `node` as part of a rule.
    fn rule(&mut self, node: &Node) -> String {
        if self.kinds.is_regular(node) {
            return self.stretch(std::slice::from_ref(node));
        }
        match node {
            Node::Rule(index) => format!("r{index}"),
            Node::Alt(nodes) => {
                let options: Vec<String> = nodes.iter().map(|node| self.rule(node)).collect();
                format!("({})", options.join(" | "))
            }
            Node::Repeat(node, least, most) => repeat(&self.rule(node), *least, *most),
            Node::Seq(nodes) => {
                let mut parts = Vec::new();
                let kinds = &self.kinds;
                let runs: Vec<&[Node]> = nodes.chunk_by(|a, b| kinds.is_regular(a) && kinds.is_regular(b)).collect();
                for run in runs {
                    let part = match run {
                        [node] => self.rule(node),
                        run => self.stretch(run),
                    };
                    parts.push(part);
                }
                format!("({})", parts.join(" "))
            }
            // Regular, and so dealt with above.
            Node::Literal(_) | Node::Class { .. } | Node::Any => self.terminal(node),
        }
    }

    /// A terminal for neighbouring regular nodes.
    fn stretch(&mut self, nodes: &[Node]) -> String {
        if nodes.iter().all(|node| self.kinds.is_empty(node)) {
            return r#""""#.into();
        }
        if let [Node::Rule(index)] = nodes {
            return format!("T{index}");
        }
        let body = self.sequence(nodes);
        let next = self.stretches.len();
        let index = *self.stretches.entry(body.clone()).or_insert(next);
        if index == next {
            let _ = writeln!(self.text, "X{index}: {body}");
        }
        format!("X{index}")
    }

    /// `node`, which is regular, as part of a terminal.
    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Literal(text) => literal(text),
            Node::Class { ranges, negated } => class(ranges, *negated),
            Node::Any => "/(?s:.)/".into(),
            Node::Rule(index) => format!("T{index}"),
            Node::Seq(nodes) => self.sequence(nodes),
            Node::Alt(nodes) => {
                let options: Vec<String> = nodes.iter().map(|node| self.terminal(node)).collect();
                format!("({})", options.join(" | "))
            }
            Node::Repeat(node, least, most) => repeat(&self.terminal(node), *least, *most),
        }
    }

    fn sequence(&self, nodes: &[Node]) -> String {
        let parts: Vec<String> = nodes.iter().map(|node| self.terminal(node)).collect();
        if parts.is_empty() { r#""""#.into() } else { format!("({})", parts.join(" ")) }
    }
}

fn repeat(inner: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (_, Some(0)) => r#""""#.into(),
        (0, None) => format!("({inner})*"),
        (1, None) => format!("({inner})+"),
        (0, Some(1)) => format!("({inner})?"),
        (least, None) => format!("({inner}){{{least},}}"),
        (least, Some(most)) => format!("({inner}){{{least},{most}}}"),
    }
}

fn literal(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn class(ranges: &[(char, char)], negated: bool) -> String {
    let mut regex = String::from(if negated { "/[^" } else { "/[" });
    for &(first, last) in ranges {
        let _ = write!(regex, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(first), u32::from(last));
    }
    regex.push_str("]/");
    regex
}
