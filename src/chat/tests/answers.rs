//! From the text of answers to messages.

use proptest::prelude::*;

use super::*;

const THINK: Markers = Markers { open: "<think>", close: "</think>" };

#[derive(Debug, Default, PartialEq)]
struct Read {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
}

fn calls(format: ToolFormat, guided: bool) -> Option<Calls> {
    Some(Calls { format, tools: tools(), guided, parallel: true })
}

/// What a reader makes of these pieces.
fn read(mut reader: Reader, pieces: &[&str]) -> Read {
    let mut read = Read::default();
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    deltas.extend(reader.finish());
    for delta in deltas {
        match delta {
            Delta::Content(text) => read.content.push_str(&text),
            Delta::Reasoning(text) => read.reasoning.push_str(&text),
            Delta::Call(name) => read.calls.push((name, String::new())),
            Delta::Arguments(text) => read.calls.last_mut().unwrap().1.push_str(&text),
        }
    }
    read
}

fn whole(format: ToolFormat, text: &str) -> Read {
    read(Reader::new(None, false, calls(format, false)), &[text])
}

fn called(content: &str, calls: &[(&str, &str)]) -> Read {
    let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
    Read { content: content.to_owned(), calls, ..Read::default() }
}

#[test]
fn calls_in_each_format() {
    use ToolFormat::{Glm, Hermes, Llama, MistralArgs, MistralList};
    let oslo = r#"{"city": "Oslo"}"#;
    let cases = [
        (
            Hermes,
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
            called("", &[("weather", oslo)]),
        ),
        (
            Hermes,
            "Let me see.\n\n<tool_call>{\"arguments\":{\"city\": \"Oslo\"},\"name\":\"weather\"}</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
            called("Let me see.", &[("weather", oslo), ("now", "{}")]),
        ),
        // The arguments once more as text, and no closing mark.
        (
            Hermes,
            r#"<tool_call>{"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}"#,
            called("", &[("weather", oslo)]),
        ),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"now\", \"arguments\": null}\n</tool_call> Well.",
            called(" Well.", &[("now", "{}")]),
        ),
        (
            Glm,
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n<arg_key>days</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
            called("", &[("weather", r#"{"city": "7", "days": 7}"#)]),
        ),
        (
            Glm,
            "Hm.<tool_call>now</tool_call><tool_call>now\n</tool_call>",
            called("Hm.", &[("now", "{}"), ("now", "{}")]),
        ),
        (Llama, " {\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}", called("", &[("weather", oslo)])),
        (
            Llama,
            "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
            called("", &[("now", "{}"), ("now", "{}")]),
        ),
        (Llama, "It is {\"name\": \"now\"}", called("It is {\"name\": \"now\"}", &[])),
        (
            MistralList,
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}, \"id\": \"abcdefghi\"}, {\"name\": \"now\", \"arguments\": {}}]",
            called("", &[("weather", oslo), ("now", "{}")]),
        ),
        (
            MistralArgs,
            "[TOOL_CALLS]weather[CALL_ID]x[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]now[ARGS]{}",
            called("", &[("weather", oslo), ("now", "{}")]),
        ),
    ];
    for (format, text, wanted) in cases {
        assert_eq!(whole(format, text), wanted, "{text}");
    }
}

/// What turns out to be no call was said, all of it; and a call behind it is one.
#[test]
fn what_is_no_call_was_said() {
    use ToolFormat::{Glm, Hermes, Llama, MistralArgs, MistralList};
    let cases = [
        (Hermes, "<tool_call>oops</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": "),
        (Hermes, "<tool_call>{\"name\": \"unheard\", \"arguments\": {}}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": 7}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>"),
        (Hermes, "<tool_call>{}</tool_call>"),
        (Hermes, "the mark <tool_ca"),
        (Glm, "<tool_call>unheard</tool_call>"),
        (Glm, "<tool_call>weather<arg_key>city</arg_key>Oslo</tool_call>"),
        (Llama, "{\"city\": \"Oslo\"}"),
        (Llama, "{"),
        (MistralList, "[TOOL_CALLS]nothing"),
        (MistralList, "[TOOL_CALLS][1]"),
        (MistralArgs, "[TOOL_CALLS]unheard[ARGS]{}"),
    ];
    for (format, text) in cases {
        assert_eq!(whole(format, text), called(text, &[]), "{text}");
    }
    let second = "<tool_call>oops <tool_call>{\"name\": \"now\"}</tool_call>";
    assert_eq!(whole(ToolFormat::Hermes, second), called("<tool_call>oops", &[("now", "{}")]));
}

/// A blank behind a call without a closing mark is kept or not whether or not it comes in the same piece.
#[test]
fn blanks_behind_a_call_without_a_closing_mark() {
    for behind in [" {", "\n\nb", "  "] {
        let text = format!("[TOOL_CALLS]now[ARGS]{{}}{behind}");
        let reader = Reader::new(None, false, calls(ToolFormat::MistralArgs, false));
        let (call, rest) = text.split_at(text.len() - behind.len());
        assert_eq!(read(reader.clone(), &[call, rest]), read(reader, &[&text]), "{text:?}");
    }
}

/// Without parallel calls those behind the first are left out.
#[test]
fn one_call_where_one_is_wanted() {
    let now = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let one = Calls { parallel: false, ..calls(ToolFormat::Hermes, false).unwrap() };
    assert_eq!(read(Reader::new(None, false, Some(one)), &[now, now]), called("", &[("now", "{}")]));
}

/// vllm PR#48852, codex#7517: a guided call is told as it comes, name first.
#[test]
fn vllm_48852_arguments_come_in_pieces() {
    let mut reader = Reader::new(None, false, calls(ToolFormat::Hermes, true));
    let pieces = [
        "<tool_call>\n{\"name\": \"weat",
        "her\", \"arguments\": ",
        "{\"ci",
        "ty\": \"}",
        "\"}",
        "}\n</tool",
        "_call>",
    ];
    let deltas: Vec<Vec<Delta>> = pieces.iter().map(|piece| reader.push(piece)).collect();
    let more = |text: &str| vec![Delta::Arguments(text.to_owned())];
    assert_eq!(
        deltas,
        [vec![], vec![Delta::Call("weather".into())], more("{\"ci"), more("ty\": \"}"), more("\"}"), vec![], vec![]]
    );
    assert_eq!(reader.finish(), []);
}

#[test]
fn thoughts_come_first() {
    let thinking =
        |text: &str, opened| read(Reader::new(Some(THINK), opened, calls(ToolFormat::Hermes, false)), &[text]);
    let thought = |reasoning: &str, content: &str| Read { reasoning: reasoning.into(), ..called(content, &[]) };
    assert_eq!(thinking(" <think>\na\n</think>\n\nb ", false), thought("a", "b "));
    assert_eq!(thinking("a </think> b", true), thought("a", "b"));
    assert_eq!(thinking("a <tool_call>", true), thought("a <tool_call>", ""));
    assert_eq!(thinking(" b <think>c</think>", false), thought("", " b <think>c</think>"));
    assert_eq!(thinking("<think></think>b", false), thought("", "b"));
    assert_eq!(thinking("<thin", false), thought("", "<thin"));
}

fn any_answer() -> impl Strategy<Value = Vec<String>> {
    let part = prop_oneof![
        "[ a\n]{0,4}",
        prop::sample::select(vec![
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
            "<tool_call>{\"arguments\": {\"city\": \"O\\\"}ß\"}, \"name\": \"weather\"}</tool_call>",
            "{\"name\": \"now\", \"parameters\": {}}",
            "<tool_call>weather<arg_key>city</arg_key><arg_value>a {</arg_value></tool_call>",
            "<arg_key>",
            "</arg_key>",
            "; ",
            "{",
            "}",
            "[",
            ", ",
            "[TOOL_CALLS]",
            "[TOOL_CALLS][{\"name\": \"now\"}, {\"name\": \"weather\", \"arguments\": {\"city\": [1]}}]",
            "[ARGS]",
            "[TOOL_CALLS]now[ARGS]{}",
            "[TOOL_CALLS]now[CALL_ID]1[ARGS] {\"a\": {\"b\": []}}",
            "\"name\": ",
            "ß🏖",
            "<",
            "<|python_tag|>",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..8)
}

proptest! {
    /// However an answer is cut, the deltas joined are the same, and nothing that was said is lost.
    #[test]
    fn deltas_joined_do_not_depend_on_the_cuts(
        parts in any_answer(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        format in prop::sample::select(vec![
            ToolFormat::Hermes, ToolFormat::Glm, ToolFormat::Llama, ToolFormat::MistralList, ToolFormat::MistralArgs,
        ]),
        (thoughts, opened, with_calls) in any::<(bool, bool, bool)>(),
    ) {
        let text = parts.concat();
        let reader = Reader::new(thoughts.then_some(THINK), opened, calls(format, false).filter(|_| with_calls));
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).filter(|&at| text.is_char_boundary(at)).collect();
        places.extend([0, text.len()]);
        places.sort_unstable();
        let pieces: Vec<&str> = places.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
        let whole = read(reader.clone(), &[&text]);
        prop_assert_eq!(&read(reader, &pieces), &whole);
        if !with_calls && !thoughts {
            prop_assert_eq!(&whole.content, &text);
        }
        for (name, arguments) in &whole.calls {
            prop_assert!(tools().iter().any(|tool| tool.name == *name));
            prop_assert!(serde_json::from_str::<Map<String, Value>>(arguments).is_ok());
        }
    }
}
