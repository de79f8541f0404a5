//! Who gets how many rows of the next step.

/// Divides `budget` rows between prompts that still need `needs[i]` rows each: as evenly as the needs allow, earlier
/// ones first when it does not divide evenly. `grants` is overwritten, one entry for each need.
pub(super) fn share_rows(mut budget: u32, needs: &[u32], grants: &mut Vec<u32>) {
    grants.clear();
    grants.resize(needs.len(), 0);
    loop {
        let open = needs.iter().zip(grants.iter()).filter(|(need, grant)| grant < need).count();
        let Some(share) = budget.checked_div(u32::try_from(open).unwrap_or(u32::MAX)) else { return };
        if budget == 0 {
            return;
        }
        for (need, grant) in needs.iter().zip(grants.iter_mut()) {
            let more = share.max(1).min(need - *grant).min(budget);
            *grant += more;
            budget -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(budget: u32, needs: &[u32]) -> Vec<u32> {
        let mut grants = vec![99];
        share_rows(budget, needs, &mut grants);
        grants
    }

    #[test]
    fn shares_are_even_and_leftovers_pass_on() {
        assert_eq!(shares(8, &[]), [0; 0]);
        assert_eq!(shares(8, &[100]), [8]);
        assert_eq!(shares(8, &[100, 100]), [4, 4]);
        assert_eq!(shares(9, &[100, 100]), [5, 4]);
        assert_eq!(shares(12, &[1, 100, 3]), [1, 8, 3]);
        assert_eq!(shares(12, &[100, 1, 100]), [6, 1, 5]);
        assert_eq!(shares(2, &[5, 5, 5]), [1, 1, 0]);
        assert_eq!(shares(0, &[5]), [0]);
    }

    proptest! {
        #[test]
        fn nothing_is_wasted_and_nobody_is_favoured(budget in 0u32..200, needs in prop::collection::vec(0u32..60, 0..10)) {
            let grants = shares(budget, &needs);
            prop_assert_eq!(grants.iter().sum::<u32>(), budget.min(needs.iter().sum()));
            for (grant, need) in grants.iter().zip(&needs) {
                prop_assert!(grant <= need);
                if grant < need {
                    prop_assert!(grants.iter().all(|other| *other <= grant + 1), "{:?} of {:?}", grants, needs);
                }
            }
        }
    }
}
