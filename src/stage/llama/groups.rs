//! Which rows of a batch go through llama.cpp together.
//!
//! Each sequence has KV cells of its own (a *stream*), so that attention over it never depends on its neighbours: not on
//! where their cells lie, nor on how many there are. Over streams, llama.cpp computes rows together only when each
//! sequence brings the same number of them and the sequence numbers are consecutive. So:
//!
//! * a sequence with several rows (a piece of a prompt) is a group of its own, computed exactly as if it were alone;
//! * all sequences with one row (decoding) form one group, in the order of their numbers. Small gaps between the numbers
//!   are bridged with a row that is forgotten again, which saves a pass over the weights.

use crate::stage::{Row, SeqId};
use std::collections::BTreeMap;

/// Idle sequences in a row that are computed along. Where a pass is bound by reading the weights (large models, many cores)
/// a row more is nearly free and a second pass doubles the time; on two cores with SmolLM2-135M, where a row costs 7 ms and
/// a pass without rows 4 ms, one bridged row costs 3 ms more than it saves.
const MAX_BRIDGE: u32 = 2;

/// One row of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    /// The row of the batch with this index.
    Row(usize),
    /// A row that only keeps sequence numbers consecutive.
    Bridge(SeqId),
}

/// Splits a batch. Every row is in exactly one group, the rows of a sequence stay in order, and the rows of a prompt are
/// cut once more where `max_outputs` of them ask for output. Gaps are bridged over sequences that `can_bridge` allows.
pub(super) fn groups(rows: &[Row], can_bridge: impl Fn(SeqId) -> bool, max_outputs: usize) -> Vec<Vec<Member>> {
    let mut by_seq: BTreeMap<SeqId, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        by_seq.entry(row.seq).or_default().push(index);
    }
    let mut prompts = Vec::new();
    let mut singles: Vec<Member> = Vec::new();
    let mut last = None;
    for (seq, indices) in by_seq {
        let [index] = indices[..] else {
            prompts.extend(pieces(&indices, rows, max_outputs));
            continue;
        };
        if let Some(SeqId(last)) = last
            && seq.0 - last - 1 <= MAX_BRIDGE
            && (last + 1..seq.0).all(|idle| can_bridge(SeqId(idle)))
        {
            singles.extend((last + 1..seq.0).map(|idle| Member::Bridge(SeqId(idle))));
        }
        singles.push(Member::Row(index));
        last = Some(seq);
    }
    // Decoding first: a bridged sequence may be one whose prompt is read in this very batch.
    let decoding = (!singles.is_empty()).then_some(singles);
    decoding.into_iter().chain(prompts).collect()
}

/// Cuts the rows of one sequence where more than `max_outputs` (at least 1) of them would ask for output.
fn pieces(indices: &[usize], rows: &[Row], max_outputs: usize) -> Vec<Vec<Member>> {
    let mut pieces = Vec::new();
    let (mut piece, mut n_outputs) = (Vec::new(), 0);
    for index in indices {
        let output = usize::from(rows[*index].output);
        if n_outputs + output > max_outputs {
            pieces.push(std::mem::take(&mut piece));
            n_outputs = 0;
        }
        piece.push(Member::Row(*index));
        n_outputs += output;
    }
    pieces.push(piece);
    pieces
}

/// Whether the groups are the batch itself, as one group in the same order.
pub(super) fn is_whole_batch(groups: &[Vec<Member>]) -> bool {
    match groups {
        [group] => group.iter().enumerate().all(|(index, member)| *member == Member::Row(index)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Member::{Bridge, Row as At};
    use proptest::prelude::*;

    fn groups(rows: &[Row], bridge: bool) -> Vec<Vec<Member>> {
        super::groups(rows, |_| bridge, usize::MAX)
    }

    fn rows(seqs: &[u32]) -> Vec<Row> {
        seqs.iter().map(|seq| Row { seq: SeqId(*seq), pos: 0, output: true }).collect()
    }

    #[test]
    fn decoding_lanes_go_together_and_prompts_alone() {
        assert_eq!(groups(&rows(&[0, 1, 2]), true), [vec![At(0), At(1), At(2)]]);
        assert_eq!(groups(&rows(&[2, 0, 1, 1]), true), [vec![At(1), Bridge(SeqId(1)), At(0)], vec![At(2), At(3)]]);
        assert_eq!(groups(&rows(&[5, 5, 3, 3]), true), [vec![At(2), At(3)], vec![At(0), At(1)]]);
        assert!(groups(&[], true).is_empty());
    }

    #[test]
    fn small_gaps_are_bridged_and_large_ones_are_not() {
        let expected = vec![At(0), Bridge(SeqId(1)), Bridge(SeqId(2)), At(1), At(2)];
        assert_eq!(groups(&rows(&[0, 3, 7]), true), [expected]);
        assert_eq!(groups(&rows(&[0, 3, 7]), false), [vec![At(0), At(1), At(2)]]);
        let full = super::groups(&rows(&[0, 2, 4]), |seq| seq != SeqId(3), usize::MAX);
        assert_eq!(full, [vec![At(0), Bridge(SeqId(1)), At(1), At(2)]], "sequence 3 has no row to spare");
    }

    #[test]
    fn a_prompt_is_cut_where_its_outputs_would_be_too_many() {
        let mut batch = rows(&[0; 6]);
        batch[1].output = false;
        let sizes =
            |max_outputs| -> Vec<usize> { super::groups(&batch, |_| true, max_outputs).iter().map(Vec::len).collect() };
        assert_eq!(sizes(5), [6]);
        assert_eq!(sizes(2), [3, 2, 1]);
        assert_eq!(sizes(1), [2, 1, 1, 1, 1]);
    }

    #[test]
    fn a_batch_in_order_is_recognised() {
        assert!(is_whole_batch(&groups(&rows(&[1, 2, 3]), true)));
        assert!(is_whole_batch(&groups(&rows(&[4, 4, 4]), true)));
        assert!(!is_whole_batch(&groups(&rows(&[2, 1]), true)));
        assert!(!is_whole_batch(&groups(&rows(&[1, 3]), true)));
        assert!(!is_whole_batch(&groups(&rows(&[1, 1, 2]), true)));
    }

    proptest! {
        #[test]
        fn every_row_is_computed_once(seqs in prop::collection::vec(0u32..12, 0..40), bridge: bool) {
            let batch = rows(&seqs);
            let mut seen: Vec<usize> = groups(&batch, bridge)
                .into_iter()
                .flatten()
                .filter_map(|member| match member { At(index) => Some(index), Bridge(_) => None })
                .collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..batch.len()).collect::<Vec<_>>());
        }

        #[test]
        fn no_group_holds_a_sequence_twice_unless_it_is_alone(seqs in prop::collection::vec(0u32..12, 1..40)) {
            let batch = rows(&seqs);
            for group in groups(&batch, true) {
                let mut inside: Vec<u32> = group
                    .iter()
                    .map(|member| match member { At(index) => batch[*index].seq.0, Bridge(seq) => seq.0 })
                    .collect();
                prop_assert!(inside.is_sorted());
                inside.dedup();
                prop_assert!(inside.len() == 1 || inside.len() == group.len());
            }
        }
    }
}
