//! Rows of indexer, selection and attention.

use super::{
    PhaseEArgs, Spoil,
    fixtures::{Fixture, Group},
    parity,
};
use crate::{
    cli::bench::stats::{Sample, paired_ratio},
    package::generation::Switch,
    policy::{
        Inputs, Path, Phase, Profile,
        evidence::{self, Measurement},
    },
    stage::{
        TopK,
        dsa::{
            Switches,
            measure::{AttentionLayer, Variant},
        },
    },
};
use anyhow::Context as _;
use serde::Serialize;
use std::time::Duration;

/// One of our ways to compute one shape.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AttentionRow {
    pub(super) group: Group,
    pub(super) n_kv: usize,
    pub(super) tokens: usize,
    pub(super) top_k: usize,
    pub(super) path: String,
    /// Where the row is about a thread count.
    pub(super) threads: Option<u32>,
    /// Where the row is about the rows of a chunk.
    pub(super) chunk_rows: Option<usize>,
    pub(super) upstream_select_ms: Sample,
    pub(super) upstream_attend_ms: Sample,
    /// None where the path need not select.
    pub(super) select_ms: Option<Sample>,
    pub(super) attend_ms: Sample,
    /// Upstream's time over ours, pair by pair: above 1 is faster.
    pub(super) select_speedup: Option<Sample>,
    pub(super) attend_speedup: Sample,
    /// Of a layer, the indexer counted once in `--share` layers.
    pub(super) layer_speedup: Sample,
    /// Of a layer, ours and upstream's.
    pub(super) layer_ms: f64,
    pub(super) upstream_layer_ms: f64,
    /// 10^9 multiplications with an addition, each second.
    pub(super) select_gmacs: Option<f64>,
    pub(super) attend_gmacs: f64,
    /// Largest difference of a value from the exact one, relative to the largest value, and what it may be.
    pub(super) value_error: f64,
    pub(super) value_tolerance: f64,
    /// See [`parity::SELECTION`].
    pub(super) selection_error: f64,
    /// Upstream's own difference from the exact values.
    pub(super) upstream_error: f64,
    /// Lists that IndexShare hands on for these rows.
    pub(super) sideband_bytes: u64,
    /// What a dense mask would take.
    pub(super) dense_mask_bytes: u64,
}

/// What is attended to: upstream's list and, for each variant, its own.
struct Lists {
    upstream: Vec<i32>,
    ours: Vec<Option<Vec<i32>>>,
}

/// What attending to a list gives: the paths select alike, and upstream takes seconds for the longest shapes.
struct Known {
    list: Vec<i32>,
    exact: Vec<f32>,
    upstream: Vec<f32>,
}

/// Results of the comparison, for each variant.
struct Compared {
    lists: Lists,
    errors: Vec<Errors>,
    values: Vec<Vec<f32>>,
}

/// Errors of one variant.
#[derive(Clone, Copy)]
struct Errors {
    values: f64,
    selection: f64,
    upstream: f64,
}

/// Select, where it selects, and attend.
type Pair = (Option<Duration>, Duration);

/// Compares, then times all variants of `fixture`. What a switch gains goes to `evidence`.
pub(super) fn measure(
    args: &PhaseEArgs,
    layer: &mut AttentionLayer,
    fixture: &Fixture,
    evidence: &mut Vec<Measurement>,
) -> anyhow::Result<Vec<AttentionRow>> {
    let shape = &fixture.shape;
    let Compared { lists, errors, values } = compare(args, layer, fixture)?;
    let rounds = fixture.rounds(args.rounds);
    let sides = fixture.variants.len() + 1;
    let mut times: Vec<Vec<Pair>> = vec![Vec::with_capacity(rounds); sides];
    for round in 0..rounds {
        // In turns, and each first in its turn: nobody has the warm cache of the one before every time.
        for side in (0..sides).map(|i| (i + round) % sides) {
            let pair = match fixture.variants.get(side) {
                None => {
                    let select = layer.upstream_select(shape)?.took;
                    (Some(select), layer.upstream_attend(shape, &lists.upstream)?.took)
                }
                Some(variant) => {
                    let select = layer.select(shape, variant)?.map(|timed| timed.took);
                    let list = lists.ours[side].as_deref().unwrap_or_default();
                    (select, layer.attend(shape, variant, list)?.took)
                }
            };
            times[side].push(pair);
        }
    }
    let upstream = times.pop().context("upstream was not measured")?;
    for (at, variant) in fixture.variants.iter().enumerate().filter(|(_, variant)| variant.switches.selected_row_flash)
    {
        let without = Variant { switches: Switches::default(), ..*variant };
        let Some(base) = fixture.variants.iter().position(|variant| *variant == without) else { continue };
        let layers = |at: usize| layers(args.share, &times[at]);
        evidence.push(Measurement {
            profile: Profile::GlmDsaV1,
            switch: Switch::SelectedRowFlash,
            shape: evidence::Shape {
                n_tokens: shape.tokens as u32,
                n_kv: shape.n_kv as u32,
                top_k: shape.top_k as u32,
            },
            parity_error: parity::difference(&values[at], &values[base]),
            tolerance: parity::VALUES,
            speed_ratio: paired_ratio(&layers(base), &layers(at)).context("no rounds")?.median,
        });
    }
    let rows = fixture.variants.iter().zip(&times).zip(errors);
    rows.map(|((variant, times), errors)| row(args.share, fixture, variant, errors, [times, &upstream])).collect()
}

fn compare(args: &PhaseEArgs, layer: &mut AttentionLayer, fixture: &Fixture) -> anyhow::Result<Compared> {
    let shape = &fixture.shape;
    let scores = layer.scores(shape)?;
    let upstream = layer.upstream_select(shape)?.value;
    let everything: Vec<i32> = (0..shape.n_kv as i32).collect();
    let (mut ours, mut errors, mut all_values) = (Vec::new(), Vec::new(), Vec::new());
    let mut known: Option<Known> = None;
    for variant in &fixture.variants {
        let what = || format!("{}: {}", fixture.describe(), label(variant));
        let mut list = layer.select(shape, variant)?.map(|timed| timed.value);
        if let (Some(list), Some(Spoil::Selection)) = (&mut list, args.spoil) {
            spoil_selection(list, &scores);
        }
        let judged = list.as_deref().unwrap_or(&everything);
        let selection = parity::selection_error(&scores, shape.n_kv, judged, shape.top_k).with_context(what)?;
        anyhow::ensure!(
            selection <= parity::SELECTION,
            "{}: a selected score lies {selection:.1e} of the largest on the wrong side of the k-th",
            what()
        );
        // Each side on our list, whatever ties upstream has broken the other way.
        let sure = match known.take().filter(|known| known.list == judged) {
            Some(known) => known,
            None => {
                let (exact, theirs) = (layer.exact(shape, judged)?, layer.upstream_attend(shape, judged)?.value);
                Known { list: judged.to_vec(), exact, upstream: theirs }
            }
        };
        let mut values = layer.attend(shape, variant, list.as_deref().unwrap_or_default())?.value;
        if args.spoil == Some(Spoil::Values) {
            values.iter_mut().take(1).for_each(|value| *value += 1.0);
        }
        let (error, tolerance) = (parity::difference(&values, &sure.exact), tolerance(variant.path));
        let theirs = parity::difference(&sure.upstream, &sure.exact);
        anyhow::ensure!(
            error <= tolerance,
            "{}: values differ by {error:.1e} of the largest, more than {tolerance:.0e}",
            what()
        );
        anyhow::ensure!(
            theirs <= parity::UPSTREAM,
            "{}: upstream's values differ by {theirs:.1e} of the largest: it computes something else",
            fixture.describe()
        );
        errors.push(Errors { values: error, selection, upstream: theirs });
        ours.push(list);
        all_values.push(values);
        known = Some(sure);
    }
    Ok(Compared { lists: Lists { upstream, ours }, errors, values: all_values })
}

/// Masked paths run ggml's flash attention, and round as it does.
fn tolerance(path: Path) -> f64 {
    match path {
        Path::Dense | Path::Fallback => parity::UPSTREAM,
        Path::CompactFlash | Path::DirectSparse | Path::SparseChunked => parity::VALUES,
    }
}

/// Replaces the best row of the first list with one that was not chosen.
fn spoil_selection(list: &mut [i32], scores: &[f32]) {
    let best = (0..list.len()).max_by(|a, b| {
        let score = |at: usize| usize::try_from(list[at]).ok().and_then(|at| scores.get(at).copied());
        score(*a).unwrap_or(f32::MIN).total_cmp(&score(*b).unwrap_or(f32::MIN))
    });
    let Some(best) = best else { return };
    let unused = (0..i32::MAX).find(|row| !list.contains(row)).unwrap_or(0);
    list[best] = unused;
    list.sort_unstable();
}

fn row(
    share: u32,
    fixture: &Fixture,
    variant: &Variant,
    errors: Errors,
    [ours, upstream]: [&[Pair]; 2],
) -> anyhow::Result<AttentionRow> {
    let (shape, no_rounds) = (&fixture.shape, "no rounds");
    let selects = |side: &[Pair]| side.iter().map(|(select, _)| *select).collect::<Option<Vec<_>>>();
    let attends = |side: &[Pair]| side.iter().map(|(_, attend)| *attend).collect::<Vec<_>>();
    let (select, upstream_select) = (selects(ours), selects(upstream).context(no_rounds)?);
    let (attend, upstream_attend) = (attends(ours), attends(upstream));
    let (layer, upstream_layer) = (layers(share, ours), layers(share, upstream));
    let millis = |times: &[Duration]| Sample::millis(times).context(no_rounds);
    let faster = |ours: &[Duration], theirs: &[Duration]| paired_ratio(theirs, ours).context(no_rounds);

    let select_ms = select.as_deref().map(millis).transpose()?;
    let attend_ms = millis(&attend)?;
    let (select_macs, attend_macs) = AttentionLayer::macs(shape, variant.path);
    let (tokens, n_kv) = (shape.tokens as u32, shape.n_kv as u32);
    Ok(AttentionRow {
        group: fixture.group,
        n_kv: shape.n_kv,
        tokens: shape.tokens,
        top_k: shape.top_k,
        path: label(variant),
        threads: variant.threads,
        chunk_rows: variant.chunk_rows,
        upstream_select_ms: millis(&upstream_select)?,
        upstream_attend_ms: millis(&upstream_attend)?,
        select_speedup: select.as_deref().map(|select| faster(select, &upstream_select)).transpose()?,
        attend_speedup: faster(&attend, &upstream_attend)?,
        layer_speedup: faster(&layer, &upstream_layer)?,
        layer_ms: millis(&layer)?.median,
        upstream_layer_ms: millis(&upstream_layer)?.median,
        select_gmacs: select_ms.as_ref().map(|ms| select_macs / ms.median / 1e6),
        attend_gmacs: attend_macs / attend_ms.median / 1e6,
        select_ms,
        attend_ms,
        value_error: errors.values,
        value_tolerance: tolerance(variant.path),
        selection_error: errors.selection,
        upstream_error: errors.upstream,
        sideband_bytes: TopK::bytes(shape.tokens, shape.top_k),
        dense_mask_bytes: Inputs::new(Phase::Decode, tokens, n_kv).dense_mask_bytes(),
    })
}

/// Times of a layer.
fn layers(share: u32, side: &[Pair]) -> Vec<Duration> {
    side.iter().map(|(select, attend)| select.unwrap_or_default() / share + *attend).collect()
}

fn label(variant: &Variant) -> String {
    let forced = if variant.always_select { ", selecting" } else { "" };
    let fused = if variant.switches.selected_row_flash { ", selected_row_flash" } else { "" };
    format!("{}{forced}{fused}", variant.path.label())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::dsa::measure::Shape;

    #[test]
    fn a_spoiled_selection_is_seen() {
        let scores = [3.0, 2.0, 2.5, 1.0];
        let mut list = [0, 2];
        assert_eq!(parity::selection_error(&scores, 4, &list, 2), Ok(0.0));
        spoil_selection(&mut list, &scores);
        assert_eq!(list, [1, 2]);
        assert!(parity::selection_error(&scores, 4, &list, 2).unwrap() > parity::SELECTION);
    }

    #[test]
    fn a_layer_counts_the_indexer_once_in_so_many() {
        let ms = Duration::from_millis;
        let fixture = Fixture {
            group: Group::Long,
            shape: Shape { n_kv: 8192, tokens: 1, top_k: 2048 },
            variants: vec![Variant::of(Path::DirectSparse)],
        };
        let errors = Errors { values: 0.0, selection: 0.0, upstream: 0.0 };
        let (ours, theirs) = ([(Some(ms(4)), ms(1))], [(Some(ms(8)), ms(6))]);
        let row = row(4, &fixture, &fixture.variants[0], errors, [&ours, &theirs]).unwrap();
        assert_eq!((row.layer_ms, row.upstream_layer_ms), (2.0, 8.0));
        assert_eq!((row.layer_speedup.median, row.attend_speedup.median), (4.0, 6.0));
        assert_eq!(row.select_gmacs, Some(8192.0 * 4096.0 / 4e6));
        assert_eq!((row.sideband_bytes, row.dense_mask_bytes), (8192, 32_768));
        let unselected = super::row(4, &fixture, &fixture.variants[0], errors, [&[(None, ms(2))], &theirs]).unwrap();
        assert_eq!((unselected.select_speedup.is_none(), unselected.layer_ms), (true, 2.0));
    }
}
