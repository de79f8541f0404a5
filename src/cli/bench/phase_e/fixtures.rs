//! The shapes that are measured.

use crate::{
    policy::Path,
    stage::dsa::{
        Switches,
        measure::{AttentionLayer, Shape, Variant},
    },
};
use serde::Serialize;

/// Rows that belong together.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Group {
    /// One token, 257 rows, top-k 64
    Decode,
    /// One token where top-k covers exactly what is visible, and one row beyond
    Boundaries,
    /// One token at the top-k of GLM-5.2's IndexShare, 768
    Native,
    /// 4 to 16 tokens
    Short,
    /// 8192 rows and more, top-k 2048
    Long,
    /// Routed and shared experts
    Moe,
    /// Threads, chunks and tokens one by one
    Sweep,
}

/// A shape, and our ways to compute it.
pub(super) struct Fixture {
    pub(super) group: Group,
    pub(super) shape: Shape,
    pub(super) variants: Vec<Variant>,
}

impl Fixture {
    fn new(group: Group, [n_kv, tokens, top_k]: [usize; 3], variants: Vec<Variant>) -> Self {
        Self { group, shape: Shape { n_kv, tokens, top_k }, variants }
    }

    /// Memory that it takes, roughly: cache, scores and masks of both sides, queries and values.
    pub(super) fn bytes(&self) -> usize {
        let Shape { n_kv, tokens, top_k } = self.shape;
        let cells = tokens * n_kv;
        AttentionLayer::bytes(n_kv) + cells * 16 + tokens * (64 * 1088 * 8 + top_k * 8)
    }

    pub(super) fn describe(&self) -> String {
        let Shape { n_kv, tokens, top_k } = self.shape;
        format!("{}: {n_kv} rows, {tokens} tokens, top-k {top_k}", label(self.group))
    }

    /// Rounds to take of it when `base` are asked for.
    pub(super) fn rounds(&self, base: u16) -> usize {
        let base = usize::from(base);
        match self.shape.n_kv * self.shape.tokens {
            cells if cells <= 1 << 16 => base * 4,
            cells if cells > 1 << 22 => base.min(2),
            _ => base,
        }
    }
}

/// The name on the command line.
pub(super) fn label(group: Group) -> String {
    use clap::ValueEnum as _;
    group.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The paths that run one token.
const ONE: [Path; 3] = [Path::Dense, Path::CompactFlash, Path::DirectSparse];
/// The paths that run several.
const SEVERAL: [Path; 4] = [Path::Dense, Path::CompactFlash, Path::DirectSparse, Path::SparseChunked];
/// The paths that run a piece of a long prompt. For many rows `direct-sparse` is `sparse-chunked`.
const MANY: [Path; 3] = [Path::Dense, Path::CompactFlash, Path::SparseChunked];

/// `paths` as production runs them, and compact-flash with its switch open behind them.
fn as_produced(paths: &[Path]) -> Vec<Variant> {
    let fused = Switches { selected_row_flash: true, ..Switches::default() };
    let switched =
        paths.contains(&Path::CompactFlash).then(|| Variant { switches: fused, ..Variant::of(Path::CompactFlash) });
    paths.iter().map(|path| Variant::of(*path)).chain(switched).collect()
}

/// Every fixture; fewer of the long ones when `quick`.
pub(super) fn all(quick: bool, threads: u32) -> Vec<Fixture> {
    let mut all = vec![Fixture::new(Group::Decode, [257, 1, 64], as_produced(&ONE))];
    for rows in [128, 256, 257, 513] {
        // Production attends to everything here. The selecting kernels are measured beside it: what the boundary saves.
        let forced =
            [Path::CompactFlash, Path::DirectSparse].map(|path| Variant { always_select: true, ..Variant::of(path) });
        let variants = [Variant::of(Path::Dense)].into_iter().chain(forced).collect();
        all.push(Fixture::new(Group::Boundaries, [rows, 1, rows], variants));
        all.push(Fixture::new(Group::Boundaries, [rows + 1, 1, rows], as_produced(&ONE)));
    }
    for rows in [1024, 2048] {
        all.push(Fixture::new(Group::Native, [rows, 1, 768], as_produced(&ONE)));
    }
    for tokens in [4, 8, 16] {
        all.push(Fixture::new(Group::Short, [257, tokens, 64], as_produced(&SEVERAL)));
    }
    let long: &[usize] = if quick { &[8192] } else { &[8192, 32_768, 131_072] };
    for rows in long {
        all.push(Fixture::new(Group::Long, [*rows, 1, 2048], as_produced(&ONE)));
        all.push(Fixture::new(Group::Long, [*rows, 64, 2048], as_produced(&MANY)));
    }
    all.extend(sweep(quick, threads));
    all
}

/// Thread counts of the sweep: one, two, all.
pub(super) fn sweep_threads(threads: u32) -> Vec<u32> {
    let mut counts = vec![1, 2.min(threads), threads];
    counts.dedup();
    counts
}

/// Rows of a chunk that the sweep tries.
pub(super) const SWEEP_CHUNKS: [usize; 4] = [1, 8, 32, 64];
/// Tokens that the sweep tries.
pub(super) const SWEEP_TOKENS: [usize; 5] = [1, 2, 4, 16, 64];

fn sweep(quick: bool, threads: u32) -> Vec<Fixture> {
    let rows = if quick { 4096 } else { 8192 };
    let with_threads = |path: Path| {
        let of = |threads| Variant { threads: Some(threads), ..Variant::of(path) };
        sweep_threads(threads).into_iter().map(of).collect::<Vec<_>>()
    };
    let chunked = |rows| Variant { chunk_rows: Some(rows), ..Variant::of(Path::SparseChunked) };
    let mut many = with_threads(Path::SparseChunked);
    many.extend(SWEEP_CHUNKS.map(chunked));
    let mut all = vec![
        Fixture::new(Group::Sweep, [rows, 1, 2048], with_threads(Path::DirectSparse)),
        Fixture::new(Group::Sweep, [rows, 64, 2048], many),
    ];
    let between = SWEEP_TOKENS.into_iter().filter(|tokens| *tokens != 1 && *tokens != 64);
    all.extend(between.map(|n| Fixture::new(Group::Sweep, [rows, n, 2048], as_produced(&[Path::DirectSparse]))));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parity compares lists of all rows of the pass, so no fixture may have rows that select beside rows that do not.
    #[test]
    fn rows_of_a_pass_select_all_or_none() {
        for fixture in all(false, 8).into_iter().chain(all(true, 1)) {
            let Shape { n_kv, tokens, top_k } = fixture.shape;
            assert!(n_kv - tokens >= top_k || (tokens == 1 && n_kv == top_k), "{}", fixture.describe());
            assert!(fixture.bytes() < 1 << 30, "{}", fixture.describe());
            assert!(!fixture.variants.is_empty());
        }
    }

    #[test]
    fn what_the_issue_of_the_phases_asks_for_is_there() {
        let shapes: Vec<_> = all(false, 2).iter().map(|f| [f.shape.n_kv, f.shape.tokens, f.shape.top_k]).collect();
        let long = [8192, 32_768, 131_072].into_iter().flat_map(|rows| [[rows, 1, 2048], [rows, 64, 2048]]);
        let exact = [128, 256, 257, 513].map(|rows| [rows, 1, rows]);
        let others = [[257, 1, 64], [1024, 1, 768], [2048, 1, 768], [257, 4, 64], [257, 16, 64]];
        for shape in long.chain(exact).chain(others) {
            assert!(shapes.contains(&shape), "{shape:?}");
        }
    }

    #[test]
    fn long_fixtures_take_few_rounds_and_short_ones_many() {
        let rounds = |shape, base| Fixture::new(Group::Long, shape, Vec::new()).rounds(base);
        assert_eq!([rounds([257, 1, 64], 5), rounds([32_768, 64, 2048], 5)], [20, 5]);
        assert_eq!([rounds([131_072, 64, 2048], 5), rounds([131_072, 64, 2048], 1)], [2, 1]);
    }
}
