//! What grammars of calls let through, and that readers find calls in it.

use super::*;
use crate::{
    grammar::{GrammarEngine, GrammarSpec},
    serve::testing::{EOG, FakeText},
};

const THINK: Markers = Markers { open: "<think>", close: "</think>" };

fn plan(format: ToolFormat, tools: &[Tool]) -> CallGrammar<'_> {
    CallGrammar {
        format,
        tools,
        required: true,
        parallel: true,
        opened: false,
        unclosed: false,
        thought: None,
        answer: None,
    }
}

/// Whether `text` is a whole answer by `grammar`.
fn admits(grammar: &CallGrammar<'_>, text: &str) -> bool {
    let engine = GrammarEngine::new(&FakeText::new()).unwrap();
    let lark = grammar.lark();
    let grammar = engine.compile(&GrammarSpec::Lark(lark.clone())).unwrap_or_else(|error| panic!("{error}\n{lark}"));
    let mut matching = grammar.start(false);
    for byte in text.bytes() {
        if !allows(&mut matching, i32::from(byte)) {
            return false;
        }
        matching.accept(i32::from(byte)).unwrap();
    }
    allows(&mut matching, EOG)
}

fn allows(matching: &mut crate::grammar::Matching, token: i32) -> bool {
    if matching.is_over() {
        return token == EOG;
    }
    matching.mask(&[0.0; 258]).unwrap()[token as usize] != f32::NEG_INFINITY
}

fn hermes(call: &str) -> String {
    format!("<tool_call>\n{call}\n</tool_call>")
}

#[test]
fn calls_that_must_be_made() {
    use ToolFormat::{Glm, Hermes, Llama, MistralArgs, MistralList};
    let tools = tools();
    let (now, oslo) = (r#"{"name": "now", "arguments": {}}"#, r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#);
    let glm_oslo = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Os</lo</arg_value>\n</tool_call>";
    let good = [
        (Hermes, hermes(oslo)),
        (Hermes, format!("{}\n{}", hermes(now), hermes(oslo))),
        (Glm, glm_oslo.to_owned()),
        (Glm, "<tool_call>weather<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>".to_owned()),
        (Glm, "<tool_call>now\n</tool_call>".to_owned()),
        (Llama, r#"{"name": "weather", "parameters": {"city": "Oslo"}}"#.to_owned()),
        (MistralList, format!("[TOOL_CALLS][{now}, {oslo}]")),
        (MistralArgs, r#"[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 3}"#.to_owned()),
    ];
    for (format, text) in good {
        assert!(admits(&plan(format, &tools), &text), "{text}");
        let calls = Calls { format, tools: tools.clone(), guided: true, parallel: true };
        let mut reader = Reader::new(None, false, Some(calls));
        let deltas = [reader.push(&text), reader.finish()].concat();
        assert!(deltas.iter().all(|delta| matches!(delta, Delta::Call(_) | Delta::Arguments(_))), "{deltas:?}");
        assert!(matches!(deltas.first(), Some(Delta::Call(_))), "{deltas:?}");
    }
    let bad = [
        (Hermes, "Hello".to_owned()),
        (Hermes, String::new()),
        (Hermes, hermes(r#"{"name": "unheard", "arguments": {}}"#)),
        (Hermes, hermes(r#"{"name": "weather", "arguments": {}}"#)),
        (Hermes, hermes(r#"{"name": "weather", "arguments": {"city": 7}}"#)),
        (Hermes, format!("{} and", hermes(now))),
        (Glm, "<tool_call>weather\n</tool_call>".to_owned()),
        (Glm, "<tool_call>now\n<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>".to_owned()),
        (Llama, r#"{"name": "weather", "parameters": []}"#.to_owned()),
        (MistralList, "[TOOL_CALLS][]".to_owned()),
    ];
    for (format, text) in bad {
        assert!(!admits(&plan(format, &tools), &text), "{text}");
    }
    let one = CallGrammar { parallel: false, ..plan(Hermes, &tools) };
    assert!(admits(&one, &hermes(now)) && !admits(&one, &format!("{}\n{}", hermes(now), hermes(now))));
    let opened = CallGrammar { opened: true, ..plan(MistralList, &tools) };
    assert!(admits(&opened, &format!("[{now}]")));
    let opened = CallGrammar { opened: true, unclosed: true, parallel: false, ..plan(Hermes, &tools) };
    assert!(admits(&opened, &format!("\n{now}")));
    let opened = CallGrammar { opened: true, parallel: false, ..plan(MistralArgs, &tools[1..]) };
    assert!(admits(&opened, "{}"));
}

#[test]
fn calls_that_may_be_made() {
    use ToolFormat::{Glm, Hermes, Llama, MistralList};
    let tools = tools();
    let now = r#"{"name": "now", "arguments": {}}"#;
    for format in [Hermes, Glm, Llama, MistralList] {
        let auto = CallGrammar { required: false, ..plan(format, &tools) };
        for text in ["", "Hello", "a < b\n\nc"] {
            assert!(admits(&auto, text), "{format:?}: {text}");
        }
    }
    let auto = CallGrammar { required: false, ..plan(Hermes, &tools) };
    assert!(admits(&auto, &hermes(now)) && admits(&auto, &format!("I see.\n{}\n{}", hermes(now), hermes(now))));
    assert!(!admits(&auto, "<tool_call>oops") && !admits(&auto, &hermes("{}")));
    let llama = CallGrammar { required: false, ..plan(Llama, &tools) };
    assert!(admits(&llama, r#"{"name": "now", "parameters": {}}"#) && !admits(&llama, "{}"));
    let list = CallGrammar { required: false, ..plan(MistralList, &tools) };
    assert!(admits(&list, &format!("Yes[TOOL_CALLS][{now}]")) && !admits(&list, "[TOOL_CALLS]x"));
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let formatted = CallGrammar { answer: Some(&schema), ..auto };
    assert!(admits(&formatted, r#"{"a": 1}"#) && admits(&formatted, &hermes(now)));
    assert!(!admits(&formatted, "Hello") && !admits(&formatted, &format!("Hello{}", hermes(now))));
}

#[test]
fn thoughts_before_calls() {
    let tools = tools();
    let call = hermes(r#"{"name": "now", "arguments": {}}"#);
    for required in [true, false] {
        let may_think = Some(Thought { markers: THINK, opened: false });
        let plan = CallGrammar { required, thought: may_think, ..plan(ToolFormat::Hermes, &tools) };
        assert!(admits(&plan, &format!("<think>a <tool_call> b</think>\n\n{call}")));
        assert!(admits(&plan, &call));
        let thinks = CallGrammar { thought: Some(Thought { markers: THINK, opened: true }), ..plan };
        assert!(admits(&thinks, &format!("a</think>{call}")));
        assert!(!admits(&thinks, &call));
    }
    let lark = CallGrammar::json_behind(THINK, &json!({"enum": ["x"]}));
    assert!(GrammarEngine::new(&FakeText::new()).unwrap().compile(&GrammarSpec::Lark(lark)).is_ok());
}
