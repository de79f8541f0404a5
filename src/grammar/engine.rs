//! From a vocabulary and a grammar to something that answers can be held to.

use std::{fmt, sync::Arc, time::Duration};

use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    earley::SlicedBiasComputer,
    panic_utils,
};
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use crate::{
    grammar::{GrammarError, GrammarSpec, Matching, bounded::Places, gbnf, lark, schema},
    text::TextModel,
};

/// Bytes of a schema written out at most, also inside a grammar.
const MAX_SCHEMA_BYTES: usize = 1 << 18;

/// Bytes of a grammar at most.
const MAX_GRAMMAR_BYTES: usize = 1 << 16;

/// Bytes of a regular expression at most.
const MAX_REGEX_BYTES: usize = 1 << 14;

/// Bytes of a token at most; longer ones never match. The trie holds no path of more than 1024.
const MAX_TOKEN_BYTES: usize = 1000;

/// Tokens of a vocabulary at most: what the nodes of the trie can number.
const MAX_VOCAB: u32 = 1 << 21;

/// Grammars compiled at a time.
const COMPILERS: usize = 2;

/// How long a grammar may wait to be compiled, and then how long that may take. Ordinary ones take a millisecond.
/// Tests compile the largest without optimization.
const COMPILE_TIME: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 5 });

/// Grammars over one vocabulary. Making it takes a look at every token; it is then shared.
pub struct GrammarEngine {
    compiler: Arc<Compiler>,
    places: Arc<Places>,
}

struct Compiler {
    factory: ParserFactory,
    kinds: Arc<TokenKinds>,
}

/// Tokens by what they may be used for.
pub(super) struct TokenKinds {
    /// Those with text, and those that end a generation.
    pub(super) usable: SimpleVob,
    /// Those that end a generation.
    pub(super) ends: SimpleVob,
}

/// A grammar of one request, ready to be followed. Clones are cheap and start at its beginning, each on its own.
#[derive(Clone)]
pub struct Grammar {
    spec: Arc<GrammarSpec>,
    matcher: Matcher,
    kinds: Arc<TokenKinds>,
}

impl GrammarEngine {
    /// Tokens without text (control tokens) match nothing, whatever a grammar says; those that end a generation match
    /// where the grammar may end.
    ///
    /// # Errors
    /// When the vocabulary is empty or too large.
    pub fn new(text: &dyn TextModel) -> Result<Self, GrammarError> {
        let n_vocab = text.n_vocab();
        if n_vocab == 0 || n_vocab > MAX_VOCAB {
            return Err(GrammarError::Vocabulary(format!("it has {n_vocab} tokens, 1 to {MAX_VOCAB} are possible")));
        }
        let made = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (trie, usable) = trie(text);
            let kinds = Arc::new(TokenKinds { usable, ends: trie.eos_token_set() });
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)?;
            factory.quiet();
            *factory.limits_mut() = limits();
            let compiler = Arc::new(Compiler { factory, kinds });
            Ok(Self { compiler, places: Arc::new(Places::new(COMPILERS)) })
        }));
        made.map_err(|error| GrammarError::Vocabulary(first_line(&error.to_string())))
    }

    /// Compiles `spec`. Takes a millisecond as a rule and seconds at most, so it is not for async code.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] or [`GrammarError::TooLarge`], both faults of who wrote it; [`GrammarError::Busy`].
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Grammar, GrammarError> {
        let grammar = source(spec)?;
        let (compiler, spec) = (self.compiler.clone(), Arc::new(spec.clone()));
        self.places.run(COMPILE_TIME, move || compiler.matcher(grammar, spec))?
    }
}

impl Compiler {
    fn matcher(&self, grammar: TopLevelGrammar, spec: Arc<GrammarSpec>) -> Result<Grammar, GrammarError> {
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(GrammarError::Invalid(explained(&error)));
        }
        // What would fail on the first token fails now.
        matcher.clone().compute_mask_or_eos().map_err(|error| {
            GrammarError::Invalid(format!(
                "no text of this vocabulary begins with it: {}",
                first_line(&error.to_string())
            ))
        })?;
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(GrammarError::Invalid(first_line(warning)));
        }
        Ok(Grammar { spec, matcher, kinds: self.kinds.clone() })
    }
}

impl fmt::Debug for GrammarEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarEngine").finish_non_exhaustive()
    }
}

impl Grammar {
    /// What it was compiled from.
    pub fn spec(&self) -> &GrammarSpec {
        &self.spec
    }

    /// Follows one answer from its beginning. With `ignore_eos` the answer goes on as long as the grammar lets it.
    pub fn start(&self, ignore_eos: bool) -> Matching {
        Matching::new(self.matcher.clone(), self.kinds.clone(), ignore_eos)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// The vocabulary as a trie of what its tokens print, and the tokens of any use.
fn trie(text: &dyn TextModel) -> (TokTrie, SimpleVob) {
    let n_vocab = text.n_vocab();
    let ids = 0..i32::try_from(n_vocab).unwrap_or(i32::MAX);
    let ends: Vec<u32> = ids.clone().filter(|&id| text.is_eog(id)).map(i32::cast_unsigned).collect();
    let word = |id| Some(text.piece(id, false)).filter(|word| word.len() <= MAX_TOKEN_BYTES && !text.is_eog(id));
    let words: Vec<Vec<u8>> = ids.map(|id| word(id).unwrap_or_default()).collect();
    let trie = TokTrie::from(&TokRxInfo::new(n_vocab, ends.first().copied().unwrap_or(INVALID_TOKEN)), &words);
    let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
    let mut usable = trie.eos_token_set();
    for (id, word) in (0..).zip(&words) {
        if !word.is_empty() {
            usable.allow_token(id);
        }
    }
    (trie, usable)
}

/// About 15 ms for one mask and 20 MB for one grammar at worst; ordinary ones take thousandths of that.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

fn source(spec: &GrammarSpec) -> Result<TopLevelGrammar, GrammarError> {
    match spec {
        GrammarSpec::JsonObject => json_schema(&json!({"type": "object"})),
        GrammarSpec::JsonSchema(schema) => json_schema(schema),
        GrammarSpec::Text(text) if gbnf::is_gbnf(text) => {
            bounded(text, MAX_GRAMMAR_BYTES)?;
            Ok(TopLevelGrammar::from_lark(gbnf::to_lark(text)?))
        }
        GrammarSpec::Text(text) | GrammarSpec::Lark(text) => {
            bounded(text, MAX_SCHEMA_BYTES)?;
            let ready = lark::prepare(text)?;
            Ok(TopLevelGrammar::from_lark(ready))
        }
        GrammarSpec::Regex(regex) => {
            bounded(regex, MAX_REGEX_BYTES)?;
            Ok(TopLevelGrammar::from_regex(regex))
        }
    }
}

fn json_schema(schema: &Value) -> Result<TopLevelGrammar, GrammarError> {
    bounded(&schema.to_string(), MAX_SCHEMA_BYTES)?;
    Ok(TopLevelGrammar::from_json_schema(schema::prepare(schema)?))
}

fn bounded(text: &str, most: usize) -> Result<(), GrammarError> {
    if text.len() <= most {
        return Ok(());
    }
    Err(GrammarError::TooLarge(format!("it has {} bytes, at most {most} are possible", text.len())))
}

/// What llguidance says first; behind it may stand states, grammars and backtraces.
pub(super) fn first_line(message: &str) -> String {
    const MOST: usize = 300;
    let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim();
    let printable: String = line.chars().filter(|c| !c.is_control()).take(MOST).collect();
    printable.trim_start_matches("panic: ").to_owned()
}

/// The first line, with advice about options replaced that are no client's.
fn explained(message: &str) -> String {
    let line = first_line(message);
    match line.contains("oneOf") {
        true => {
            "`oneOf` is only possible where its options exclude each other by type, constant or a required property, \
                 so that it equals `anyOf`"
                .into()
        }
        false => line,
    }
}
