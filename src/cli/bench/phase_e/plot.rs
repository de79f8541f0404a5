//! Time of a layer against KV rows, path by path.

use super::{attention::AttentionRow, fixtures::Group, report::Report};
use anyhow::anyhow;
use plotters::prelude::*;
use std::collections::BTreeMap;

const PANEL: (u32, u32) = (640, 480);
const COLOURS: [RGBColor; 6] = [
    RGBColor(120, 120, 120),
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
];

/// Points of one path, by KV rows.
type Series = Vec<(f64, f64)>;

/// One panel for each number of tokens, side by side; axes logarithmic. Of the long fixtures, where there are any.
///
/// # Errors
/// When there is nothing to plot, or plotting fails.
pub(super) fn svg(report: &Report) -> anyhow::Result<String> {
    let panels = panels(&report.attention);
    anyhow::ensure!(!panels.is_empty(), "there is nothing to plot: no row of attention was measured");
    let failed = |error: &dyn std::fmt::Display| anyhow!("cannot plot: {error}");
    let mut text = String::new();
    {
        let size = (PANEL.0 * panels.len() as u32, PANEL.1);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        for (area, (tokens, series)) in root.split_evenly((1, panels.len())).iter().zip(&panels) {
            let noun = if *tokens == 1 { "token" } else { "tokens" };
            let title = format!("One layer, {tokens} {noun}, {} threads", report.origin.threads);
            panel(area, &title, series).map_err(|error| failed(&error))?;
        }
        root.present().map_err(|error| failed(&error))?;
    }
    Ok(text)
}

fn panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    title: &str,
    series: &BTreeMap<String, Series>,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let points = || series.values().flatten();
    let (x, y) = (around(points().map(|point| point.0)), around(points().map(|point| point.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
    chart.configure_mesh().x_desc("KV rows").y_desc("ms").x_label_formatter(&|x| format!("{x:.0}")).draw()?;
    for ((path, points), colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        let sample = move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2));
        chart.draw_series(line)?.label(path).legend(sample);
    }
    let labels = SeriesLabelPosition::UpperLeft;
    chart.configure_series_labels().position(labels).background_style(WHITE.mix(0.8)).border_style(BLACK).draw()
}

/// The ends of an axis with some room.
fn around(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), v| (low.min(v), high.max(v)));
    (low / 1.5, high * 1.5)
}

fn panels(rows: &[AttentionRow]) -> BTreeMap<usize, BTreeMap<String, Series>> {
    let long = rows.iter().any(|row| row.group == Group::Long);
    let shown = |row: &&AttentionRow| if long { row.group == Group::Long } else { row.group != Group::Sweep };
    let mut panels: BTreeMap<usize, BTreeMap<String, Series>> = BTreeMap::new();
    for row in rows.iter().filter(shown) {
        let panel = panels.entry(row.tokens).or_default();
        let x = row.n_kv as f64;
        // Upstream has one time for each shape, which every path of it repeats.
        for (path, y) in [(" upstream", row.upstream_layer_ms), (&row.path, row.layer_ms)] {
            let series = panel.entry(path.to_owned()).or_default();
            if series.iter().all(|point| point.0 != x) {
                series.push((x, y));
            }
        }
    }
    for series in panels.values_mut().flat_map(BTreeMap::values_mut) {
        series.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    panels
}
