//! Who gets how many rows of the next step.

/// Gives prompts their next piece: `chunk` rows, or what is left of the prompt. Whole pieces only, so that a prompt is cut
/// in the same places whoever its neighbours are (how it is cut may change how its logits round). The first piece goes to
/// prompt `first`, the others follow in order while they fit into `budget`.
///
/// `needs[i]` is what is left of prompt `i`, 0 for none; `grants` is overwritten, one entry for each need. Returns the
/// prompt that should come first in the next step: the one after the last that got a piece.
pub(super) fn grant_pieces(budget: u32, chunk: u32, needs: &[u32], first: usize, grants: &mut Vec<u32>) -> usize {
    grants.clear();
    grants.resize(needs.len(), 0);
    let (mut left, mut next) = (budget, first);
    for i in (0..needs.len()).map(|i| (first + i) % needs.len()) {
        let piece = needs[i].min(chunk);
        if piece > left {
            break;
        }
        if piece > 0 {
            grants[i] = piece;
            left -= piece;
            next = i + 1;
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces(budget: u32, chunk: u32, needs: &[u32], first: usize) -> (Vec<u32>, usize) {
        let mut grants = vec![99];
        let next = grant_pieces(budget, chunk, needs, first, &mut grants);
        (grants, next)
    }

    #[test]
    fn pieces_are_whole_and_start_where_the_last_step_ended() {
        assert_eq!(pieces(8, 8, &[], 0), (vec![], 0));
        assert_eq!(pieces(8, 8, &[100], 0), (vec![8], 1));
        assert_eq!(pieces(8, 8, &[100, 100], 0), (vec![8, 0], 1));
        assert_eq!(pieces(8, 8, &[92, 100], 1), (vec![0, 8], 2));
        assert_eq!(pieces(8, 8, &[92, 92], 2), (vec![8, 0], 1));
        assert_eq!(pieces(10, 8, &[3, 0, 4, 5], 0), (vec![3, 0, 4, 0], 3));
        assert_eq!(pieces(10, 8, &[0, 0, 0, 5], 3), (vec![0, 0, 0, 5], 4));
    }

    proptest! {
        #[test]
        fn nobody_waits_longer_than_a_round(
            chunk in 1u32..50,
            spare in 0u32..20,
            needs in prop::collection::vec(0u32..200, 1..8),
        ) {
            let (mut left, mut first, mut steps) = (needs.clone(), 0, vec![0u32; needs.len()]);
            let mut rounds = 0;
            while left.iter().any(|need| *need > 0) {
                let (grants, next) = pieces(chunk + spare, chunk, &left, first);
                prop_assert!(grants.iter().sum::<u32>() <= chunk + spare);
                prop_assert!(grants.iter().any(|grant| *grant > 0), "a step must get somewhere");
                for ((grant, need), steps) in grants.iter().zip(&mut left).zip(&mut steps) {
                    prop_assert!(*grant == 0 || *grant == chunk.min(*need), "a piece must be whole");
                    *need -= grant;
                    *steps += u32::from(*grant > 0);
                }
                first = next;
                rounds += 1;
                prop_assert!(rounds <= 200 * needs.len());
            }
            for (need, steps) in needs.iter().zip(steps) {
                prop_assert_eq!(steps, need.div_ceil(chunk));
            }
        }
    }
}
