//! Time to the first token of a prompt whose beginning the server has just read, against one that is all new.

use super::{Numbers, prompt::Prompts, target::Target};

/// Tokens of each answer: the first one counts.
const TOKENS: usize = 4;

/// One request after the other.
pub(super) struct Prefix {
    pub(super) words: usize,
    pub(super) shared: f64,
}

impl Prefix {
    pub(super) fn what(&self) -> String {
        format!("prompts of {} words, {:.0} % shared with the one before", self.words, self.shared * 100.0)
    }

    pub(super) async fn round(&self, target: &Target, prompts: &mut Prompts) -> anyhow::Result<Numbers> {
        let shared = prompts.next((self.words as f64 * self.shared) as usize);
        let rest = self.words - shared.split(' ').count();
        let mut first = Vec::new();
        for _ in 0..2 {
            let prompt = format!("{shared} {}", prompts.next(rest));
            first.push(target.complete(&prompt, TOKENS, |_| {}).await?.first().as_secs_f64() * 1e3);
        }
        let (cold, hot) = (first[0], first[1]);
        Ok(vec![("first token cold ms", cold), ("first token hot ms", hot), ("hot / cold", hot / cold)])
    }
}
