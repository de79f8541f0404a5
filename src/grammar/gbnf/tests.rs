//! The converter against a plain recognizer of GBNF.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;
use crate::grammar::{
    GrammarSpec,
    tests::{say, shared},
};

/// Whether `rules` has `text`: every place where a match of a rule can end, by iteration up to the fixed point, so that
/// left recursion is no trouble.
fn accepts(rules: &Rules, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut known: HashMap<(usize, usize), BTreeSet<usize>> = HashMap::new();
    loop {
        let before = known.values().map(BTreeSet::len).sum::<usize>();
        for rule in 0..rules.bodies.len() {
            for start in 0..=text.len() {
                let found = ends(&rules.bodies[rule], &text, start, &known);
                known.entry((rule, start)).or_default().extend(found);
            }
        }
        if known.values().map(BTreeSet::len).sum::<usize>() == before {
            return known[&(rules.root, 0)].contains(&text.len());
        }
    }
}

fn ends(node: &Node, text: &[char], start: usize, known: &HashMap<(usize, usize), BTreeSet<usize>>) -> BTreeSet<usize> {
    let one =
        |fits: &dyn Fn(char) -> bool| text.get(start).filter(|c| fits(**c)).map(|_| start + 1).into_iter().collect();
    match node {
        Node::Literal(literal) => {
            let literal: Vec<char> = literal.chars().collect();
            text[start..].starts_with(&literal).then_some(start + literal.len()).into_iter().collect()
        }
        Node::Class { ranges, negated } => one(&|c| ranges.iter().any(|(a, b)| (*a..=*b).contains(&c)) != *negated),
        Node::Any => one(&|_| true),
        Node::Rule(rule) => known.get(&(*rule, start)).cloned().unwrap_or_default(),
        Node::Alt(nodes) => nodes.iter().flat_map(|node| ends(node, text, start, known)).collect(),
        Node::Seq(nodes) => nodes.iter().fold([start].into(), |starts: BTreeSet<usize>, node| {
            starts.into_iter().flat_map(|start| ends(node, text, start, known)).collect()
        }),
        Node::Repeat(node, least, most) => {
            let mut all = BTreeSet::new();
            let mut starts = BTreeSet::from([start]);
            // Beyond as many rounds as there are characters nothing new is found.
            for round in 0..=most.unwrap_or(u32::MAX).min(*least + text.len() as u32 + 1) {
                if round >= *least {
                    all.extend(starts.iter().copied());
                }
                starts = starts.into_iter().flat_map(|start| ends(node, text, start, known)).collect();
            }
            all
        }
    }
}

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws   # a comment with "quotes" and ::=

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) ){0,6} "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9])? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn a_grammar_of_json_gives_json() {
    let grammar = shared().compile(&GrammarSpec::Text(JSON.into())).unwrap();
    let rules = parse::parse(JSON).unwrap();
    let mut said = 0;
    for seed in 0..100 {
        let Some(text) = say(&grammar, seed, 60) else { continue };
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|value| value.is_object()), "{text:?}");
        assert!(accepts(&rules, &text), "{text:?}");
        said += 1;
    }
    assert!(said > 30, "{said} texts came to an end");
}

#[test]
fn what_is_no_gbnf_or_cannot_be_expressed_is_refused_with_the_reason() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(65), ")".repeat(65));
    let many: String = (0..1001).map(|i| format!("r{i} ::= \"a\"\n")).collect();
    let cases: [(&str, &str); 22] = [
        ("root ::= missing", "`missing` is not defined"),
        ("rule ::= \"a\"", "no rule `root`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "`root` is defined twice"),
        ("root ::= \"a", "without an end"),
        ("root ::= [a", "without an end"),
        ("root ::= \"\\q\"", "unknown escape `\\q`"),
        ("root ::= \"\\x4\"", "needs 2 hexadecimal digits"),
        ("root ::= \"\\uD800\"", "hexadecimal digits of a character"),
        ("root ::= [z-a]", "ends before it begins"),
        ("root ::= []", "without characters"),
        ("root ::= (\"a\"", "expected `)`"),
        ("root ::= \"a\")", "expected the name of a rule, found `)`"),
        ("root ::= \"a\"{3,1}", "less often than it must"),
        ("root ::= \"a\"{", "expected a number"),
        ("root ::= \"a\"{5000}", "more than 2000 repetitions"),
        ("root ::= \"a\"***", "more than two repetitions"),
        ("root ::= <think> \"a\"", "tokens (`<...>`) are not supported"),
        ("root ::= \"a\"\nother", "`other` is not defined"),
        ("root ::= \"a\"\n= ::=", "line 2: expected the name of a rule"),
        ("root ::= \"a\" | one\none ::= one \"b\"", "no text of the rule `one` ever ends"),
        (&deep, "64 groups"),
        (&many, "1000 rules"),
    ];
    for (text, reason) in cases {
        assert!(is_gbnf(text), "{text}");
        let error = shared().compile(&GrammarSpec::Text(text.into())).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
        assert!(error.len() < 400 && !error.contains(char::is_control), "{error:?}");
    }
    assert!(!is_gbnf("start: \"a\"\nname: \"::=\"") && !is_gbnf(""));
}

#[test]
fn an_error_names_its_line() {
    let error = to_lark("root ::= a\n# more\na ::= [z-a]\n").unwrap_err().to_string();
    assert!(error.contains("line 3"), "{error}");
}

/// Expressions over three letters and three rules, in GBNF.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("\"a\"".to_owned()),
        Just("\"ab\"".to_owned()),
        Just("\"\"".to_owned()),
        Just("[a-b]".to_owned()),
        Just("[^a]".to_owned()),
        Just("root".to_owned()),
        Just("one".to_owned()),
        Just("two".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.join(" ")),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|options| format!("({})", options.join(" | "))),
            (inner, prop::sample::select(vec!["*", "+", "?", "{0}", "{2}", "{1,}", "{0,2}", "{1,3}"]))
                .prop_map(|(inner, mark)| format!("({inner}){mark}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_text_of_the_converted_grammar_is_one_of_the_original(
        root in expression(), one in expression(), two in expression(), seed: u64,
    ) {
        let text = format!("root ::= {root}\none ::= {one}\ntwo ::= {two}\n");
        let rules = parse::parse(&text).unwrap();
        // Some mean no text at all, or none that ends.
        if let Ok(grammar) = shared().compile(&GrammarSpec::Text(text.clone())) {
            for seed in [seed, seed ^ 1] {
                if let Some(said) = say(&grammar, seed, 10) {
                    prop_assert!(accepts(&rules, &said), "{}\n{:?}\n{}", text, said, to_lark(&text).unwrap());
                }
            }
        }
    }

    #[test]
    fn without_recursion_nothing_is_lost(
        root in expression(), one in expression(), words in prop::collection::vec("[ab]{0,5}", 8),
    ) {
        let root = root.replace("root", "one").replace("two", "one");
        let one = one.replace("root", "\"b\"").replace("one", "[b-c]").replace("two", "\"ba\"");
        let text = format!("root ::= {root}\none ::= {one}\n");
        let rules = parse::parse(&text).unwrap();
        let Ok(grammar) = shared().compile(&GrammarSpec::Text(text.clone())) else {
            prop_assert!(words.iter().all(|word| !accepts(&rules, word)), "{} is refused", text);
            return Ok(());
        };
        for word in words {
            let mut matching = grammar.start(false);
            let mut tokens = word.bytes().map(i32::from).chain([crate::serve::testing::EOG]).peekable();
            // The end may come without a token for it.
            let fits = loop {
                match tokens.peek() {
                    Some(&token) if matching.is_over() => break token == crate::serve::testing::EOG,
                    Some(&token) => {
                        tokens.next();
                        if matching.accept(token).is_err() {
                            break false;
                        }
                    }
                    None => break true,
                }
            };
            prop_assert_eq!(fits, accepts(&rules, &word), "{} {:?}\n{}", text, word, to_lark(&text).unwrap());
        }
    }

    #[test]
    fn any_text_is_converted_or_refused(text in "(root ::= )?[\"\\[\\](){}|*+?^\\\\a-z:=\n 0-9,.<#-]{0,60}") {
        if let Err(error) = to_lark(&text) {
            prop_assert!(error.to_string().len() < 400);
        }
    }
}
