//! Prompts of a given length: random words, so that no two requests share more than a word or two by accident.

/// Common English words: most tokenizers have each of them, with the space in front, as one token.
const WORDS: &str = "time year people way day man thing woman life child world school state family student group country \
    problem hand part place case week company system program question work government number night point home water room \
    mother area money story fact month lot right study book eye job word business issue side kind head house service \
    friend father power hour game line end member law car city community name president team minute idea kid body \
    information back parent face others level office door health person art war history party result change morning \
    reason research girl guy moment air teacher force education foot boy age policy music market sense nation plan \
    college interest death experience effect use class control field development role effort rate heart drug show leader \
    light voice wife police mind price report decision son view relationship town road arm difference value building \
    action season society tax director position player record paper space ground form event matter center couple site \
    project activity star table court oil situation cost industry figure street image phone data picture practice piece \
    land product doctor wall patient worker news test movie north love step baby computer type attention film tree source";

/// Makes prompts; the same seed makes the same ones.
pub(super) struct Prompts {
    words: Vec<&'static str>,
    state: u64,
}

impl Prompts {
    pub(super) fn new(seed: u64) -> Self {
        Self { words: WORDS.split_whitespace().collect(), state: seed }
    }

    /// `n` words, each with a space in front but the first.
    pub(super) fn next(&mut self, n: usize) -> String {
        let mut text = String::with_capacity(n * 7);
        for i in 0..n {
            text.push_str(if i == 0 { "" } else { " " });
            let word = self.random() % self.words.len() as u64;
            text.push_str(self.words[word as usize]);
        }
        text
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_length_and_differ() {
        let mut prompts = Prompts::new(1);
        let (one, two) = (prompts.next(32), prompts.next(32));
        assert_eq!(one.split(' ').count(), 32);
        assert_ne!(one, two);
        assert_eq!(Prompts::new(1).next(32), one);
        assert_ne!(Prompts::new(2).next(32), one);
    }
}
