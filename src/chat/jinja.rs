//! Jinja as Hugging Face runs chat templates: its whitespace rules and its helpers, with a budget.

use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::Kwargs};

use super::{
    clock,
    error::TemplateError,
    python_json::{self, Style},
};

/// Work that one rendering may do: about as many instructions, or 64 times as many bytes of text.
const FUEL: u64 = 2_000_000;
/// Calls of macros and nested values at most.
const DEPTH: usize = 200;
/// Spaces that `tojson` indents by at most.
const MAX_INDENT: usize = 16;
/// The name under which the template is kept.
const NAME: &str = "chat";

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// A compiled template.
#[derive(Debug)]
pub(super) struct Program(Environment<'static>);

impl Program {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub(super) fn new(source: &str) -> Result<Self, TemplateError> {
        let syntax = |error: Error| TemplateError::Syntax(said(&error));
        let mut env = Environment::new();
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax)?);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(DEPTH);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", |format: &str| clock::now(format));
        env.add_filter("tojson", tojson);
        env.add_template_owned(NAME, without_generation_tags(source)).map_err(syntax)?;
        Ok(Self(env))
    }

    /// Runs it.
    ///
    /// # Errors
    /// All but [`TemplateError::Syntax`] and [`TemplateError::NotContinued`].
    pub(super) fn render(&self, context: Value) -> Result<String, TemplateError> {
        self.0.get_template(NAME).and_then(|template| template.render(context)).map_err(|error| why(&error))
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Hugging Face's `tojson`: Python's `json.dumps` without escapes for HTML.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "an undefined value is not JSON"));
    }
    let mut json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("a value is not JSON: {error}")))?;
    let mut style = Style { ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false), ..Style::default() };
    style.indent = kwargs.get::<Option<usize>>("indent")?.map(|indent| indent.min(MAX_INDENT));
    if style.indent.is_some() {
        style.item_separator = ",".into();
    }
    if let Some((item, key)) = kwargs.get::<Option<Value>>("separators")?.as_ref().and_then(pair) {
        (style.item_separator, style.key_separator) = (item, key);
    }
    if kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false) {
        json.sort_all_objects();
    }
    kwargs.assert_all_used()?;
    Ok(python_json::to_string(&json, style))
}

fn pair(value: &Value) -> Option<(String, String)> {
    let item = |i: usize| value.get_item_by_index(i).ok()?.as_str().map(str::to_owned);
    Some((item(0)?, item(1)?))
}

/// `{% generation %}` marks what to train on; it means nothing here, and minijinja does not know it.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, behind)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        rest = behind;
        let Some((tag, _)) = behind.split_once("%}") else { break };
        let word = match tag.trim_matches(['-', '+']).trim() {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        text.push_str(&tag.replace(tag.trim_matches(['-', '+']).trim(), word));
        rest = &behind[tag.len()..];
    }
    text + rest
}

fn why(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        if error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::TooExpensive;
        }
        cause = error.source();
    }
    TemplateError::Failed(said(error))
}

/// Kind, detail and line, without the source that minijinja would show beside them.
fn said(error: &Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, TemplateError> {
        let x = Value::from_pairs([("b", Value::from("ü<&>")), ("a", Value::from(vec![1, 2]))]);
        Program::new(source)?.render(Value::from_pairs([("x", x), ("none", Value::from(()))]))
    }

    #[test]
    fn helpers_of_hugging_face() {
        let cases = [
            ("{{ x | tojson }}", "{\"b\": \"ü<&>\", \"a\": [1, 2]}"),
            ("{{ x | tojson(indent=2) }}", "{\n  \"b\": \"ü<&>\",\n  \"a\": [\n    1,\n    2\n  ]\n}"),
            ("{{ x | tojson(separators=(',', ':'), sort_keys=true) }}", "{\"a\":[1,2],\"b\":\"ü<&>\"}"),
            ("{{ x | tojson(ensure_ascii=true) }}", "{\"b\": \"\\u00fc<&>\", \"a\": [1, 2]}"),
            ("{{ 'a\"b' | tojson }}{{ none | tojson }}", "\"a\\\"b\"null"),
            ("{{ ' a,b '.strip().split(',')[1].upper() }}", "B"),
            ("{% for k, v in x.items() %}{{ k }}{% endfor %}{{ x.get('c', 7) }}", "ba7"),
            ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
            ("{% generation %}a{%- endgeneration -%} b", "ab"),
            ("  {% if true %}\n  a\n  {% endif %}\n", "  a\n"),
            ("{{ strftime_now('%Y') | length }}", "4"),
            ("{% macro f(y) %}<{{ y }}>{% endmacro %}{{ f(1) }}{{ f(2) }}", "<1><2>"),
            ("{% set ns = namespace(n=0) %}{% for i in [1,2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ];
        for (source, wanted) in cases {
            assert_eq!(render(source).as_deref(), Ok(wanted), "{source}");
        }
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(render("{{ raise_exception('no ' ~ 'way') }}"), Err(TemplateError::Raised("no way".into())));
        let in_macro = "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}";
        assert_eq!(render(in_macro), Err(TemplateError::Raised("deep".into())));
        assert!(matches!(render("{% if %}"), Err(TemplateError::Syntax(_))));
        assert!(matches!(render("{{ nothing.at.all }}"), Err(TemplateError::Failed(_))));
        assert!(matches!(render("{{ nothing | tojson }}"), Err(TemplateError::Failed(_))));
        assert!(matches!(render("{{ x | tojson(colour=1) }}"), Err(TemplateError::Failed(_))));
    }

    /// A template that never ends, grows without end or nests without end takes neither the processor, the memory nor
    /// the stack.
    #[test]
    fn work_memory_and_depth_are_bounded() {
        let endless = "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}";
        let doubling = "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}";
        let json = "{% set n = namespace(s=[1]) %}{% for i in range(64) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}";
        for source in [endless, doubling] {
            assert_eq!(render(source), Err(TemplateError::TooExpensive), "{source}");
        }
        let nested = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        assert!(matches!(render(nested), Err(TemplateError::Failed(_) | TemplateError::TooExpensive)));
        let _ = json;
    }
}
