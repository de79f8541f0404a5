//! Tables for people, in Markdown.

use super::{attention::AttentionRow, fixtures, moe::ExpertsRow};
use crate::cli::bench::stats::Sample;

/// Rows of attention. `peak`: 10^9 multiply-adds each second that one thread can reach, and threads.
pub(super) fn attention(rows: &[AttentionRow], (peak, threads): (f64, u32)) -> String {
    let header = [
        "group",
        "KV rows",
        "tokens",
        "top-k",
        "path",
        "select, ms",
        "upstream",
        "faster",
        "attend, ms",
        "upstream",
        "faster",
        "layer",
        "difference",
        "of peak: select",
        "attend",
        "list bytes",
        "mask bytes",
    ];
    let cells = |row: &AttentionRow| {
        let mut path = row.path.clone();
        for (name, value) in [("threads", row.threads.map(|n| n as usize)), ("rows a chunk", row.chunk_rows)] {
            if let Some(value) = value {
                path.push_str(&format!(", {value} {name}"));
            }
        }
        let peak = peak * f64::from(row.threads.unwrap_or(threads));
        vec![
            fixtures::label(row.group),
            row.n_kv.to_string(),
            row.tokens.to_string(),
            row.top_k.to_string(),
            path,
            row.select_ms.as_ref().map_or_else(none, spread),
            spread(&row.upstream_select_ms),
            row.select_speedup.as_ref().map_or_else(none, median),
            spread(&row.attend_ms),
            spread(&row.upstream_attend_ms),
            median(&row.attend_speedup),
            times(&row.layer_speedup),
            format!("{:.0e}", row.value_error),
            row.select_gmacs.map_or_else(none, |gmacs| percent(gmacs / peak)),
            percent(row.attend_gmacs / peak),
            bytes(row.sideband_bytes),
            bytes(row.dense_mask_bytes),
        ]
    };
    markdown(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Rows of experts.
pub(super) fn experts(rows: &[ExpertsRow]) -> String {
    let header = [
        "part",
        "switch",
        "tokens",
        "gate, up",
        "down",
        "shared",
        "experts",
        "ours, ms",
        "upstream, ms",
        "faster",
        "difference",
    ];
    let cells = |row: &ExpertsRow| {
        vec![
            row.part.to_owned(),
            row.switch.map_or_else(none, str::to_owned),
            row.tokens.to_string(),
            row.gate_up.to_owned(),
            row.down.to_owned(),
            row.shared.to_owned(),
            format!("{} of {}, {} x {}", row.experts_used, row.experts, row.n_embd, row.expert_width),
            row.ours_ms.as_ref().map_or_else(none, spread),
            spread(&row.upstream_ms),
            row.speedup.as_ref().map_or_else(none, times),
            row.difference.map_or_else(none, |difference| format!("{difference:.0e}")),
        ]
    };
    markdown(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}

fn none() -> String {
    "-".into()
}

/// Median, smallest and largest.
pub(super) fn spread(sample: &Sample) -> String {
    format!("{} ({} to {})", digits(sample.median), digits(sample.min), digits(sample.max))
}

fn median(speedup: &Sample) -> String {
    format!("{:.2}x", speedup.median)
}

/// A speedup, with its spread.
pub(super) fn times(sample: &Sample) -> String {
    format!("{:.2}x ({:.2} to {:.2})", sample.median, sample.min, sample.max)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Three digits that count.
fn digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

fn bytes(n: u64) -> String {
    match n {
        n if n >= 10 << 20 => format!("{} MiB", n >> 20),
        n if n >= 10 << 10 => format!("{} KiB", n >> 10),
        n => n.to_string(),
    }
}

/// Columns aligned.
pub(super) fn markdown(header: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([header[column].len()]).max().unwrap_or_default()
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} ", width = *width));
        format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
    };
    let mut text = line(header.to_vec());
    text.push_str(&format!("|{}|\n", widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|")));
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let sample = Sample::new(vec![0.01234, 1.234, 123.4]).unwrap();
        assert_eq!(spread(&sample), "1.23 (0.012 to 123)");
        assert_eq!([bytes(4096), bytes(16 << 10), bytes(64 << 20)], ["4096", "16 KiB", "64 MiB"]);
        assert_eq!(percent(0.519), "52 %");
    }

    #[test]
    fn columns_are_aligned() {
        let text = markdown(&["a", "path"], &[vec!["10".into(), "x".into()], vec!["1".into(), "longer".into()]]);
        assert_eq!(text, "| a  | path   |\n|----|--------|\n| 10 | x      |\n| 1  | longer |\n");
    }
}
