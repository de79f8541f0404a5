//! The bundled model, served in this process. Drafts never change an answer, whatever ends it and whoever shares the
//! batch, and enough of them are accepted to be worth their while.
//!
//! Answers are compared token by token. Passes of another shape may round the last bits differently, so this holds as
//! far as no two tokens of these prompts are tied to that precision. None are.

use skippy_stage::{
    cli::serve::{self as serve_cli, config::ServeFlags},
    serve::{self, Drafts, Event, FinishReason, GenerateRequest, ServeHandle, ServeOptions, Usage},
    text::{SamplingParams, TextModel},
};
use std::{path::Path, sync::Arc, thread::JoinHandle, time::Duration};
use tokio::sync::mpsc::UnboundedReceiver;

/// Tokens of an answer, where nothing else ends it.
const TOKENS: u32 = 48;

fn assets() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets"))
}

/// The bundled model behind a [`ServeHandle`].
pub(crate) struct Server {
    pub(crate) handle: ServeHandle,
    pub(crate) text: Arc<dyn TextModel>,
    engine: Option<JoinHandle<()>>,
}

/// What a client sees of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) ids: Vec<i32>,
    pub(crate) text: String,
    pub(crate) reason: FinishReason,
    pub(crate) usage: Usage,
}

impl Server {
    /// One compute thread: tests run side by side.
    fn start(flags: ServeFlags) -> Self {
        let flags = ServeFlags { package: Some(assets().join("skippy-kjv-6m")), threads: Some(1), ..flags };
        let config = flags.resolve().unwrap();
        let model = serve_cli::load(&config).unwrap();
        let text = model.text.clone();
        let options = ServeOptions { lanes: Some(config.lanes), ..ServeOptions::default() };
        let (handle, engine) = serve::spawn(model.engine, model.text, model.card, options).unwrap();
        Self { handle, text, engine: Some(engine) }
    }

    pub(crate) fn alone() -> Self {
        Self::start(ServeFlags { lanes: Some(1), ..ServeFlags::default() })
    }

    /// Tokens of one request, prompt and answer together.
    fn n_ctx(&self) -> u32 {
        self.handle.model().unwrap().n_ctx
    }

    /// The fifty prompts, 5 to 400 tokens long.
    pub(crate) fn prompts(&self) -> Vec<Vec<i32>> {
        let texts = std::fs::read_to_string(assets().join("prompts.json")).unwrap();
        let texts: Vec<String> = serde_json::from_str(&texts).unwrap();
        assert_eq!(texts.len(), 50);
        texts.iter().map(|text| self.text.tokenize(text, true, true).unwrap()).collect()
    }

    fn submit(&self, request: GenerateRequest) -> UnboundedReceiver<Event> {
        self.handle.submit(request).unwrap()
    }

    pub(crate) fn answer(&self, request: GenerateRequest) -> (Said, Option<Drafts>) {
        collect(self.submit(request))
    }

    /// The answer with drafts and what they did, once it is sure that the answer without is the same. A request that
    /// has no room for a draft does not speculate.
    pub(crate) fn same_with_drafts(&self, request: &GenerateRequest) -> (Said, Drafts) {
        let (plain, none) = self.answer(GenerateRequest { without_speculation: true, ..request.clone() });
        let (drafted, drafts) = self.answer(request.clone());
        assert_eq!(drafted, plain, "a prompt of {} tokens", request.prompt.len());
        assert_eq!(none, None);
        (plain, drafts.unwrap_or_default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.drain(Duration::ZERO);
        self.engine.take().map(JoinHandle::join);
    }
}

fn collect(mut events: UnboundedReceiver<Event>) -> (Said, Option<Drafts>) {
    let (mut ids, mut text) = (Vec::new(), String::new());
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Delta { text: more, tokens } => {
                text.push_str(&more);
                ids.extend(tokens.iter().map(|token| token.id));
            }
            Event::Done { reason, usage, timings } => return (Said { ids, text, reason, usage }, timings.drafts),
            Event::Failed(error) => panic!("{error}"),
            Event::Started { .. } | Event::Prompt(_) => {}
        }
    }
    panic!("the answer has no end")
}

pub(crate) fn greedy(prompt: Vec<i32>) -> GenerateRequest {
    GenerateRequest {
        prompt,
        sampling: SamplingParams::greedy(),
        max_tokens: Some(TOKENS),
        ignore_eos: true,
        ..GenerateRequest::default()
    }
}

#[test]
fn drafts_change_no_greedy_answer_and_most_are_accepted() {
    let server = Server::alone();
    let mut sum = Drafts::default();
    let mut tokens = 0;
    for prompt in server.prompts() {
        let (said, drafts) = server.same_with_drafts(&greedy(prompt));
        assert_eq!((said.reason, said.ids.len()), (FinishReason::Length, TOKENS as usize));
        // Each pass gives one token, and one more when its draft was accepted; the prompt gives the first.
        assert_eq!(1 + drafts.forwards + drafts.accepted, TOKENS);
        tokens += TOKENS - 1;
        sum.drafts += drafts.drafts;
        sum.accepted += drafts.accepted;
        sum.forwards += drafts.forwards;
    }
    let ratio = |a: u32, b: u32| f64::from(a) / f64::from(b);
    assert!(ratio(sum.accepted, sum.drafts) > 0.5, "{sum:?}");
    assert!(ratio(tokens, sum.forwards) >= 1.5, "{sum:?}");
}

#[test]
fn drafts_change_no_draw_of_a_seed() {
    let server = Server::alone();
    let mut accepted = 0;
    let mut unlike_greedy = 0;
    for (seed, prompt) in (0..).zip(server.prompts()) {
        let plain = greedy(prompt);
        let sampling = SamplingParams { temperature: 0.8, top_p: 0.95, seed: Some(seed), ..SamplingParams::default() };
        let sampling = match seed % 2 {
            0 => sampling,
            _ => SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..sampling },
        };
        // Text that ends by itself: here an end of text may also come inside a window.
        let sampled = GenerateRequest { sampling, ignore_eos: false, ..plain.clone() };
        let (said, drafts) = server.same_with_drafts(&sampled);
        accepted += drafts.accepted;
        unlike_greedy += u32::from(said.ids != server.answer(plain).0.ids);
    }
    assert!(unlike_greedy > 25, "temperature changes only {unlike_greedy} of 50 answers");
    assert!(accepted > 100, "{accepted} drafts accepted");
}

#[test]
fn a_stop_string_inside_an_accepted_window_cuts_where_it_always_does() {
    let server = Server::alone();
    let mut cut_windows = 0;
    for prompt in server.prompts() {
        let request = greedy(prompt);
        let (whole, _) = server.answer(request.clone());
        // Two neighbouring tokens: where most drafts are accepted, one of them is the first of a window.
        for at in [19, 20] {
            let end: usize = whole.ids[..=at].iter().map(|id| server.text.piece(*id, false).len()).sum();
            // From inside the tokens before to the end of this one. The text is ASCII.
            let stop = whole.text[end - 6..end].to_owned();
            let expected = &whole.text[..whole.text.find(&stop).unwrap()];
            let (said, drafts) = server.same_with_drafts(&GenerateRequest { stop: vec![stop], ..request.clone() });
            assert_eq!((said.text.as_str(), said.reason), (expected, FinishReason::Stop));
            // What was computed behind the stop string is not counted: then the accepted drafts outnumber the tokens
            // that came of them by one.
            let counted = said.usage.completion_tokens;
            let computed = 1 + drafts.forwards + drafts.accepted;
            assert!(computed == counted || computed == counted + 1, "{computed} computed, {counted} counted");
            cut_windows += computed - counted;
        }
    }
    assert!(cut_windows >= 25, "only {cut_windows} of 100 stop strings end inside an accepted window");
}

#[test]
fn drafts_change_no_answer_at_the_end_of_the_context() {
    let server = Server::alone();
    let (n_ctx, text) = (server.n_ctx(), server.prompts().concat());
    assert_eq!(n_ctx, 1024);
    // Room for an even and an odd number of tokens, for one draft, for none, and for no token to go into the cache.
    for room in [40, 23, 3, 2, 1] {
        let prompt = text[..(n_ctx - room) as usize].to_vec();
        let request = GenerateRequest { max_tokens: None, ..greedy(prompt) };
        let (said, drafts) = server.same_with_drafts(&request);
        assert_eq!((said.reason, said.usage.completion_tokens), (FinishReason::Length, room), "room for {room}");
        let expected = if room > 2 { room } else { 1 };
        assert_eq!(1 + drafts.forwards + drafts.accepted, expected, "room for {room}");
    }
}

#[test]
fn four_at_once_say_what_each_says_alone() {
    let alone = Server::alone();
    let together = Server::start(ServeFlags { lanes: Some(4), ..ServeFlags::default() });
    let requests: Vec<_> = alone.prompts().into_iter().map(greedy).collect();
    let expected: Vec<Said> = requests.iter().map(|request| alone.answer(request.clone()).0).collect();
    // More than there are lanes: those that wait join a batch in which others decode.
    for (requests, expected) in requests.chunks(12).zip(expected.chunks(12)) {
        let submit = |(request, i): (&GenerateRequest, usize)| {
            // Those that do not draft share batches with those that do.
            together.submit(GenerateRequest { without_speculation: i % 3 == 0, ..request.clone() })
        };
        let running: Vec<_> = requests.iter().zip(0..).map(submit).collect();
        for (events, expected) in running.into_iter().zip(expected) {
            assert_eq!(&collect(events).0, expected, "a prompt of {} tokens", expected.usage.prompt_tokens);
        }
    }
}

#[test]
fn stages_say_what_the_whole_model_says() {
    let whole = Server::alone();
    // Layer 2 shares the list of layer 1, which crosses the boundary; layer 5 has its own.
    let split = Server::start(ServeFlags { lanes: Some(1), split: Some(vec![2, 5]), ..ServeFlags::default() });
    let mut accepted = 0;
    for prompt in whole.prompts().into_iter().step_by(2) {
        let request = greedy(prompt);
        let (said, drafts) = split.same_with_drafts(&request);
        assert_eq!((said, Some(drafts)), whole.answer(request));
        accepted += drafts.accepted;
    }
    assert!(accepted > 100, "{accepted} drafts accepted");
}
