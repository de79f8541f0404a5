//! Attention paths: asked for by the request, decided by the engine, told to the client.

use super::*;
use crate::{
    package::generation::{Generation, Thresholds},
    policy::{Path, Reason, Resolver, ResolverConfig},
    spec::Speculation,
};

/// Short prompts have 8 tokens at most, the selection covers 6 rows, and a dense mask holds 2 rows of 20 KV rows.
fn deciding(engine: FakeEngine) -> FakeEngine {
    let thresholds = Thresholds {
        short_prefill_max_tokens: Some(8),
        dense_mask_max_bytes: Some(2 * 20 * 4),
        ..Thresholds::default()
    };
    let generation = Generation { thresholds: Some(thresholds), ..Generation::default() };
    engine.deciding(Resolver::new(ResolverConfig {
        generation: Some(&generation),
        top_k: Some(6),
        ..ResolverConfig::default()
    }))
}

fn house() -> House {
    let text = FakeText::new();
    House::open(deciding(FakeEngine::new(&text, 2, 1024, 64)), text, roomy())
}

fn paths(answer: &Answer) -> (&[Path], &[Path], &[Reason]) {
    let timings = answer.timings();
    (&timings.prefill_paths, &timings.decode_paths, &timings.fallback_reasons)
}

#[test]
fn an_answer_tells_the_paths_it_took_in_order() {
    use Path::{CompactFlash, Dense, SparseChunked};
    let house = house();
    // The prompt and its first tokens are within the selection, later ones are not.
    let covered = house.answer(ask("abc", 8));
    assert_eq!(paths(&covered), (&[Dense][..], &[Dense, CompactFlash][..], &[][..]));
    let long = house.answer(ask("a prompt of some length", 8));
    assert_eq!(paths(&long), (&[SparseChunked][..], &[CompactFlash][..], &[][..]));
    // Eight tokens are short, but their mask over the rows is beyond the budget.
    let masked = house.answer(ask("12345678", 1));
    assert_eq!(paths(&masked), (&[SparseChunked][..], &[][..], &[Reason::DenseMaskOverBudget][..]));
    assert_eq!(covered.text, expected("abc", 8));
}

#[test]
fn a_request_forces_its_path_and_nobody_elses() {
    let house = house();
    let forced = |path| GenerateRequest { path: Some(path), ..ask("a prompt of some length", 8) };
    let (direct, plain) = (house.submit(forced(Path::DirectSparse)), house.submit(ask("a prompt of some length", 8)));
    let (direct, plain) = (collect(direct), collect(plain));
    assert_eq!(paths(&direct).0, [Path::DirectSparse]);
    assert_eq!(paths(&direct).1, [Path::DirectSparse]);
    assert_eq!(paths(&direct).2, [Reason::Override]);
    assert_eq!(paths(&plain).0, [Path::SparseChunked]);
    // What cannot be done is not done, and the answer says why.
    let dense = house.answer(forced(Path::Dense));
    assert_ne!(paths(&dense).0, [Path::Dense]);
    assert!(paths(&dense).2.contains(&Reason::DenseMaskOverBudget), "{dense:?}");
}

#[test]
fn windows_are_decided_on_as_such() {
    let text = FakeText::new();
    let engine = deciding(FakeEngine::new(&text, 2, 1024, 64)).drafting(|_| true);
    let card = ModelCard { speculation: Speculation::native_mtp(), ..card() };
    let house = House::with_card(engine, text, card, roomy());
    let answer = house.answer(GenerateRequest { path: Some(Path::Fallback), ..ask("a prompt of some length", 20) });
    assert_eq!(paths(&answer).1, [Path::Fallback]);
    assert!(answer.timings().drafts.unwrap().accepted > 8);
}

#[test]
fn an_engine_without_a_choice_tells_nothing() {
    let answer = House::plain(1, 256, 64).answer(GenerateRequest { path: Some(Path::Dense), ..ask("abc", 8) });
    assert_eq!(paths(&answer), (&[][..], &[][..], &[][..]));
}
