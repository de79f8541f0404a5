//! From conversations to prompts.

use proptest::prelude::*;

use super::*;

fn conversation(messages: Vec<Message>, tools: Arc<[Tool]>) -> Conversation {
    Conversation { messages, tools, variables: Map::new() }
}

fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

/// A question, a call, its result.
fn called() -> Vec<Message> {
    let mut call = Message::new(Role::Assistant, "");
    let arguments = r#"{"city": "Zürich", "days": 2}"#.to_owned();
    call.tool_calls.push(ToolCall { id: Some("call_1".into()), name: "weather".into(), arguments });
    let mut result = Message::new(Role::Tool, "sunny");
    result.tool_call_id = Some("call_1".into());
    vec![user("How is it?"), call, result]
}

#[test]
fn templates_are_asked_what_they_can_do() {
    let cases = [
        (HERMES, true, Some(ToolFormat::Hermes), None),
        (THINKING_HERMES, true, Some(ToolFormat::Hermes), Some("<think>")),
        (GLM, true, Some(ToolFormat::Glm), None),
        (LLAMA, true, Some(ToolFormat::Llama), None),
        (MISTRAL, false, Some(ToolFormat::MistralList), None),
        (MISTRAL_ARGS, true, Some(ToolFormat::MistralArgs), None),
        (PLAIN, true, None, None),
        (NO_SYSTEM, false, None, None),
    ];
    for (source, system, tools, thought) in cases {
        let traits = *template(source).traits();
        assert_eq!((traits.system, traits.tools), (system, tools), "{source}");
        assert_eq!(traits.reasoning.map(|markers| markers.open), thought, "{source}");
    }
}

#[test]
fn calls_and_results_in_each_format() {
    let prompts: Vec<String> = [HERMES, GLM, LLAMA, MISTRAL, MISTRAL_ARGS, PLAIN, NO_SYSTEM]
        .into_iter()
        .map(|source| template(source).render(&conversation(called(), tools())).unwrap().text)
        .collect();
    insta::assert_snapshot!(prompts.join("\n=====\n"));
}

/// What a template does not know is written out: a system message of the client's stays in front of the description.
#[test]
fn tools_for_templates_without_them() {
    let mut messages = called();
    messages.insert(0, Message::new(Role::Developer, "Be brief."));
    let again = messages[2].clone();
    messages.push(Message::new(Role::Tool, "rainy"));
    messages.push(again);
    insta::assert_snapshot!(template(PLAIN).render(&conversation(messages, tools())).unwrap().text);
}

#[test]
fn a_last_message_of_the_assistant_is_gone_on_with() {
    for (source, tail) in
        [(PLAIN, "<|assistant|>Once upon "), (NO_SYSTEM, "<assistant>Once upon "), (HERMES, "assistant\nOnce upon ")]
    {
        let messages = vec![user("A story"), Message::new(Role::Assistant, "Once upon ")];
        let text = template(source).render(&conversation(messages, Arc::default())).unwrap().text;
        assert!(text.ends_with(tail), "{text}");
    }
    // Behind a call the model has its turn again.
    let text = template(PLAIN).render(&conversation(called(), Arc::default())).unwrap().text;
    assert!(text.ends_with("<|end|><|assistant|>"), "{text}");
    let silent = template("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    let messages = vec![user("a"), Message::new(Role::Assistant, "b")];
    assert_eq!(silent.render(&conversation(messages, Arc::default())), Err(TemplateError::NotContinued));
}

#[test]
fn thoughts_that_the_prompt_opens() {
    let template = template(THINKING_HERMES);
    let mut conversation = conversation(vec![user("a <think>")], Arc::default());
    assert!(!template.render(&conversation).unwrap().thinking);
    conversation.variables.insert("enable_thinking".into(), true.into());
    assert!(template.render(&conversation).unwrap().thinking);
}

/// Variables cannot take the place of what the server sets.
#[test]
fn variables_do_not_replace_the_conversation() {
    let mut conversation = conversation(vec![user("a")], Arc::default());
    conversation.variables.insert("messages".into(), json!([]));
    assert_eq!(template(PLAIN).render(&conversation).unwrap().text, "<|user|>a<|end|><|assistant|>");
    assert!(Template::is_reserved("messages") && !Template::is_reserved("documents"));
}

#[test]
fn the_template_for_tools_is_chosen_for_them() {
    let both = Templates::new(Some("plain"), Some("with tools"), "", "").unwrap();
    let text = |with| both.choose(with).render(&conversation(vec![user("a")], Arc::default())).unwrap().text;
    assert_eq!((text(false).as_str(), text(true).as_str()), ("plain", "with tools"));
    assert!(matches!(Templates::new(Some("x"), Some("{% if %}"), "", ""), Err(TemplateError::Syntax(_))));
}

/// Content that is wanted in parts comes in parts.
#[test]
fn templates_that_want_parts_get_them() {
    let source = "{% for m in messages %}{{ m.content[0].text }}{% endfor %}";
    assert_eq!(template(source).render(&conversation(vec![user("abc")], Arc::default())).unwrap().text, "abc");
}

/// Arguments come as text where a template adds them to text.
#[test]
fn templates_that_want_arguments_as_text_get_them() {
    let source = "{% for t in tools or [] %}{{ t.function.name }}<tool_call>{% endfor %}{% for m in messages %}{{ m.content }}\
                  {% for c in m.tool_calls or [] %}{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% endfor %}";
    let text = template(source).render(&conversation(called(), tools())).unwrap().text;
    assert!(text.contains(r#"weather({"city": "Zürich", "days": 2})"#), "{text}");
}

fn any_message() -> impl Strategy<Value = Message> {
    let role = prop::sample::select(Role::ALL.to_vec());
    let call = ("[a-z]{0,4}", ".{0,12}", prop::option::of(".{0,12}")).prop_map(|(name, arguments, id)| ToolCall {
        id,
        name,
        arguments,
    });
    let text = prop_oneof![Just(String::new()), ".{0,20}", "(<think>|</think>|<tool_call>|\\{\\}| ){0,4}"];
    (role, text, prop::option::of(".{0,6}"), prop::option::of(".{0,6}"), prop::collection::vec(call, 0..3)).prop_map(
        |(role, content, name, reasoning, tool_calls)| Message {
            name,
            reasoning,
            tool_calls,
            tool_call_id: Some("x".into()),
            ..Message::new(role, content)
        },
    )
}

proptest! {
    /// Whatever is said, a template answers with a prompt or an error.
    #[test]
    fn any_conversation_has_a_prompt_or_an_error(
        messages in prop::collection::vec(any_message(), 1..6),
        with_tools in any::<bool>(),
    ) {
        let conversation = conversation(messages, if with_tools { tools() } else { Arc::default() });
        for source in [HERMES, THINKING_HERMES, GLM, LLAMA, MISTRAL, MISTRAL_ARGS, PLAIN, NO_SYSTEM] {
            let _ = template(source).render(&conversation);
        }
    }

    /// So does any text that is taken for a template.
    #[test]
    fn any_text_is_a_template_or_an_error(source in "(\\{\\{|\\}\\}|\\{%|%\\}| |messages|for|if|endif|[a-z0-9.()'|]){0,24}") {
        if let Ok(template) = Template::new(&source, "", "") {
            let _ = template.render(&conversation(vec![user("a")], Arc::default()));
        }
    }
}
