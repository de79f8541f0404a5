//! A server under load, over HTTP; with `--peer`, two servers in turns.
//!
//! Works on any server with OpenAI's `/v1/completions` that knows `ignore_eos`: greedy, streamed, a fixed number of
//! tokens. Each round gives both servers the same prompts, which no earlier round has used, and who comes first changes
//! with every round; what is compared is the ratio within a round. The client is one thread for all streams.

mod arrival;
mod load;
mod prefix;
mod prompt;
mod target;

use super::{client::Answer, stats::Sample};
use anyhow::Context as _;
use clap::Args;
use prompt::Prompts;
use serde::Serialize;
use std::time::Duration;
use target::Target;
use tokio::task::JoinSet;

/// Arguments of `bench serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// The server to measure
    #[arg(long, value_name = "http://HOST:PORT")]
    url: String,
    /// The server to compare it with
    #[arg(long, value_name = "http://HOST:PORT")]
    peer: Option<String>,
    /// Name of the model, for servers that ask for it
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Numbers of requests that run together
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
    streams: Vec<usize>,
    /// Words of each prompt
    #[arg(long, value_delimiter = ',', default_values_t = [32, 512])]
    prompt: Vec<usize>,
    /// Tokens to generate for each request
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Rounds of both servers; an even number lets each go first as often
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// Leave out `--streams` x `--prompt`
    #[arg(long)]
    skip_load: bool,
    /// Also measure the time to the first token of prompts that share this part with one that was just answered, against
    /// prompts that share nothing
    #[arg(long, value_name = "FRACTION")]
    shared_prefix: Option<f64>,
    /// Words of the prompts of `--shared-prefix`
    #[arg(long, default_value_t = 512)]
    prefix_prompt: usize,
    /// Also measure what running streams see of a long prompt that arrives, of this many words
    #[arg(long, value_name = "WORDS")]
    arrival: Option<usize>,
    /// Streams that run when the long prompt arrives
    #[arg(long, default_value_t = 8)]
    arrival_streams: usize,
    /// Makes other prompts; for a second run against servers that still remember the first
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    url: String,
    peer: Option<String>,
    rounds: usize,
    tests: Vec<Compared>,
}

/// One test on both servers.
#[derive(Serialize)]
struct Compared {
    /// What was measured.
    test: String,
    numbers: Vec<Line>,
}

/// One number, over all rounds.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    ours: Sample,
    peer: Option<Sample>,
    /// Ours over the peer's within a round.
    ratio: Option<Sample>,
}

/// Numbers of one round on one server by name, always the same ones in the same order.
type Numbers = Vec<(&'static str, f64)>;

enum Test {
    Load(load::Load),
    Prefix(prefix::Prefix),
    Arrival(arrival::Arrival),
}

impl Test {
    fn what(&self) -> String {
        match self {
            Self::Load(test) => test.what(),
            Self::Prefix(test) => test.what(),
            Self::Arrival(test) => test.what(),
        }
    }

    async fn round(&self, target: &Target, prompts: &mut Prompts) -> anyhow::Result<Numbers> {
        match self {
            Self::Load(test) => test.round(target, prompts).await,
            Self::Prefix(test) => test.round(target, prompts).await,
            Self::Arrival(test) => test.round(target, prompts).await,
        }
    }
}

pub(super) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let tests = tests(args)?;
    // One thread: what the client takes from the servers' cores is the same for both.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(args, &tests))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(())
}

fn tests(args: &ServeArgs) -> anyhow::Result<Vec<Test>> {
    let sizes = [args.rounds, args.tokens, args.prefix_prompt, args.arrival_streams];
    let sizes = sizes.iter().chain(&args.streams).chain(&args.prompt).chain(&args.arrival);
    anyhow::ensure!(sizes.min() > Some(&0), "numbers of rounds, streams, words and tokens must be positive");
    let mut tests = Vec::new();
    if !args.skip_load {
        for words in &args.prompt {
            let load = |streams: &usize| load::Load { streams: *streams, words: *words, tokens: args.tokens };
            tests.extend(args.streams.iter().map(load).map(Test::Load));
        }
    }
    if let Some(shared) = args.shared_prefix {
        anyhow::ensure!((0.0..1.0).contains(&shared), "--shared-prefix {shared}: expected 0 to below 1");
        tests.push(Test::Prefix(prefix::Prefix { words: args.prefix_prompt, shared }));
    }
    if let Some(words) = args.arrival {
        tests.push(Test::Arrival(arrival::Arrival { streams: args.arrival_streams, words }));
    }
    anyhow::ensure!(!tests.is_empty(), "--skip-load leaves nothing to measure");
    Ok(tests)
}

async fn measure(args: &ServeArgs, tests: &[Test]) -> anyhow::Result<Report> {
    let model = args.model.as_deref();
    let mut targets = vec![Target::new(&args.url, model).await?];
    if let Some(peer) = &args.peer {
        targets.push(Target::new(peer, model).await?);
    }
    // What is made on first use is made now.
    let most = args.streams.iter().copied().max().unwrap_or(1);
    let mut wakings = Prompts::new(args.seed);
    for target in &targets {
        load::Load { streams: most, words: 8, tokens: 8 }.round(target, &mut wakings).await?;
    }
    let mut compared = Vec::new();
    for (place, test) in (0..).zip(tests) {
        // Of each target, its rounds.
        let mut rounds: Vec<Vec<Numbers>> = vec![Vec::new(); targets.len()];
        for round in 0..args.rounds as u64 {
            let seed = args.seed.wrapping_mul(1_000_003).wrapping_add(place << 32).wrapping_add(round);
            let mut turn: Vec<usize> = (0..targets.len()).collect();
            turn.rotate_left(round as usize % targets.len());
            for side in turn {
                // The first pass of a server that has been idle takes twice as long: its weights have left the caches.
                load::Load { streams: 1, words: 8, tokens: 8 }.round(&targets[side], &mut wakings).await?;
                rounds[side].push(test.round(&targets[side], &mut Prompts::new(seed)).await?);
            }
        }
        let one = Compared { test: test.what(), numbers: lines(&rounds)? };
        if !args.json {
            print(&one);
        }
        compared.push(one);
    }
    Ok(Report { url: args.url.clone(), peer: args.peer.clone(), rounds: args.rounds, tests: compared })
}

/// Sums up the rounds of one server or two.
fn lines(rounds: &[Vec<Numbers>]) -> anyhow::Result<Vec<Line>> {
    let names = rounds.first().and_then(|rounds| rounds.first()).context("no rounds")?;
    let line = |(place, (name, _)): (usize, &(&'static str, f64))| {
        let column = |rounds: &Vec<Numbers>| rounds.iter().map(|numbers| numbers[place].1).collect::<Vec<f64>>();
        let ours = column(&rounds[0]);
        let peer = rounds.get(1).map(column);
        let ratio = peer.as_ref().map(|peer| ours.iter().zip(peer).map(|(ours, peer)| ours / peer).collect());
        Ok(Line {
            name,
            ours: Sample::new(ours).context("no rounds")?,
            peer: peer.and_then(Sample::new),
            ratio: ratio.and_then(Sample::new),
        })
    };
    names.iter().enumerate().map(line).collect()
}

fn print(compared: &Compared) {
    println!("{}", compared.test);
    for Line { name, ours, peer, ratio } in &compared.numbers {
        print!("  {name:<34} {:>9.2}", ours.median);
        match (peer, ratio) {
            (Some(peer), Some(ratio)) => {
                println!("  peer {:>9.2}  ratio {:.3} ({:.3}..{:.3})", peer.median, ratio.median, ratio.min, ratio.max);
            }
            _ => println!("  ({:.2}..{:.2})", ours.min, ours.max),
        }
    }
}

/// Sends all `prompts` at once.
async fn together(target: &Target, prompts: Vec<String>, tokens: usize) -> anyhow::Result<Vec<Answer>> {
    let mut running = JoinSet::new();
    for prompt in prompts {
        let target = target.clone();
        running.spawn(async move { target.complete(&prompt, tokens, |_| {}).await });
    }
    let mut answers = Vec::new();
    while let Some(done) = running.join_next().await {
        answers.push(done??);
    }
    Ok(answers)
}

/// The value in milliseconds that `part` of all (0 to 1) do not exceed; 0 when there are none. Sorts `values`.
fn percentile(values: &mut [Duration], part: f64) -> f64 {
    values.sort_unstable();
    let place = (values.len() as f64 * part).ceil() as usize;
    values.get(place.saturating_sub(1)).map_or(0.0, |value| value.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let mut values: Vec<Duration> = (1..=20).rev().map(Duration::from_millis).collect();
        let mut at = |part| percentile(&mut values, part);
        assert_eq!([at(0.0), at(0.5), at(0.95), at(1.0)], [1.0, 10.0, 19.0, 20.0]);
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let round = |value| vec![("x", value), ("y", 1.0)];
        let rounds = [vec![round(10.0), round(40.0), round(30.0)], vec![round(10.0), round(20.0), round(30.0)]];
        let lines = lines(&rounds).unwrap();
        let ratio = lines[0].ratio.as_ref().unwrap();
        assert_eq!((lines[0].name, ratio.min, ratio.median, ratio.max), ("x", 1.0, 1.0, 2.0));
        assert!(super::lines(&rounds[..1]).unwrap()[1].ratio.is_none());
    }
}
