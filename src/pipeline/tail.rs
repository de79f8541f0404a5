//! Behind the last layer: tokens are chosen, drafts verified, and new ones made.

use super::{Opening, Outcome, Picked, Step, StepResult, TailError, picker::Picker};
use crate::{
    stage::{DraftRow, Purpose, Row, SeqId, Span, StageBatch, StageEngine, StageError, StageInput, StageOutput},
    telemetry::metrics,
    text::{LogSoftmax, TextModel, argmax, top_n},
};
use std::{sync::Arc, time::Instant};

/// Rows that a draft needs: that of the token chosen, and its own.
const WINDOW: u32 = 2;

/// What the last stage keeps of every sequence, and what it does with rows of logits.
pub struct Tail {
    text: Arc<dyn TextModel>,
    n_vocab: usize,
    /// One for each sequence.
    places: Vec<Option<Place>>,
    questions: Vec<Question>,
}

/// A sequence that has been opened.
struct Place {
    opening: Opening,
    picker: Result<Picker, TailError>,
    chosen: u32,
}

/// A draft to ask for.
#[derive(Clone, Copy)]
struct Question {
    row: DraftRow,
    /// Rows of the sequence up to the one that chose the token.
    rows: u32,
    /// Index of the outcome it belongs to.
    outcome: usize,
}

impl Tail {
    /// The end of a pipeline of `n_seq` sequences. `text` has as many tokens as the logits have columns.
    pub fn new(text: Arc<dyn TextModel>, n_seq: u32) -> Self {
        let n_vocab = text.n_vocab() as usize;
        Self { text, n_vocab, places: (0..n_seq).map(|_| None).collect(), questions: Vec::new() }
    }

    /// A request begins on a sequence. Returns what is wrong with it, which is also the outcome of its first row; `fault` is
    /// what is known to be wrong already.
    pub fn open(&mut self, opening: Opening, fault: Option<TailError>) -> Option<TailError> {
        let Some(place) = self.places.get_mut(opening.seq.0 as usize) else {
            return Some(TailError::NotOpen(opening.seq));
        };
        let picker = fault.map_or_else(|| Picker::new(&opening, self.text.as_ref()), Err);
        let fault = picker.as_ref().err().cloned();
        let chosen = u32::try_from(opening.text.len()).unwrap_or(u32::MAX).saturating_sub(opening.prompt);
        *place = Some(Place { opening, picker, chosen });
        fault
    }

    /// Forgets every sequence.
    pub fn clear(&mut self) {
        self.places.iter_mut().for_each(|place| *place = None);
    }

    /// Runs `step` through the last stage and reads what comes out. `input` is what enters that stage.
    ///
    /// # Errors
    /// Those of the engine, and logits of another shape than asked for.
    pub fn run(
        &mut self,
        engine: &mut dyn StageEngine,
        step: &Step,
        input: StageInput<'_>,
    ) -> Result<StepResult, StageError> {
        let batch = StageBatch { input, rows: &step.rows, tokens: Some(&step.tokens), spans: &step.spans };
        let logits = match engine.forward(&batch)? {
            StageOutput::Logits(logits) => logits,
            StageOutput::Hidden(_) => {
                return Err(StageError::Engine("hidden rows came back instead of logits".into()));
            }
        };
        let mut outcomes = self.read(step, logits)?;
        self.draft(engine, &mut outcomes)?;
        Ok(StepResult { ticket: step.ticket, outcomes })
    }

    /// Reads `logits` `[n_output_rows, n_vocab]`.
    fn read(&mut self, step: &Step, logits: &[f32]) -> Result<Vec<(SeqId, Outcome)>, StageError> {
        let n = step.rows.iter().filter(|row| row.output).count();
        let mut logits = check_logits(logits, n, self.n_vocab)?.chunks_exact(self.n_vocab);
        let mut outcomes = Vec::with_capacity(step.spans.len());
        self.questions.clear();
        let mut rest = step.rows.iter().zip(&step.tokens).peekable();
        for span in &step.spans {
            let rows = std::iter::from_fn(|| rest.next_if(|(row, _)| row.seq == span.seq));
            let outputs = rows.filter_map(|(row, &token)| Some((row, token, row.output.then(|| logits.next())??)));
            let place = self.places.get_mut(span.seq.0 as usize).and_then(Option::as_mut);
            let (outcome, question) = match place {
                Some(place) => place.read(span, outputs, self.text.as_ref()),
                None => match outputs.count() {
                    0 => continue,
                    _ => (Outcome { fault: Some(TailError::NotOpen(span.seq)), ..Outcome::default() }, None),
                },
            };
            self.questions.extend(question.map(|(row, rows)| Question { row, rows, outcome: outcomes.len() }));
            if outcome != Outcome::default() {
                outcomes.push((span.seq, outcome));
            }
        }
        Ok(outcomes)
    }

    /// Asks the draft head for a guess for every sequence that wants one.
    fn draft(&mut self, engine: &mut dyn StageEngine, outcomes: &mut [(SeqId, Outcome)]) -> Result<(), StageError> {
        for question in &self.questions {
            let seq = question.row.seq;
            // The row of a draft that was not chosen.
            if engine.n_rows(seq) > question.rows
                && let Err(error) = engine.truncate(seq, question.rows)
            {
                let fault = TailError::Rejected(error.to_string());
                tracing::error!(%fault, sequence = seq.0);
                if let Some((_, outcome)) = outcomes.get_mut(question.outcome) {
                    outcome.fault = Some(fault);
                }
            }
        }
        self.questions.retain(|question| outcomes.get(question.outcome).is_some_and(|(_, it)| it.fault.is_none()));
        if self.questions.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let rows: Vec<DraftRow> = self.questions.iter().map(|question| question.row).collect();
        let logits = check_logits(engine.draft(&rows)?, rows.len(), self.n_vocab)?;
        metrics::drafted(began.elapsed());
        for (question, row) in self.questions.iter().zip(logits.chunks_exact(self.n_vocab)) {
            let Some((_, outcome)) = outcomes.get_mut(question.outcome) else { continue };
            outcome.draft = argmax(row).and_then(|id| i32::try_from(id).ok());
            outcome.no_guess = outcome.draft.is_none();
        }
        Ok(())
    }
}

impl Place {
    /// Reads the rows of a span that return logits: row, its token, its logits. What they bring, and the draft to ask for
    /// with the number of rows up to there.
    fn read<'a>(
        &mut self,
        span: &Span,
        rows: impl Iterator<Item = (&'a Row, i32, &'a [f32])>,
        text: &dyn TextModel,
    ) -> (Outcome, Option<(DraftRow, u32)>) {
        let mut outcome = Outcome::default();
        let mut last: Option<(u32, i32)> = None;
        let (mut going, mut over) = (true, false);
        for (index, (row, token, logits)) in rows.enumerate() {
            let prompt = self.opening.text.get(..self.opening.prompt as usize).unwrap_or_default();
            if let Some(&next) = prompt.get(row.pos as usize + 1) {
                outcome.scored.push(self.picked(next, logits, Some(self.opening.logprobs.unwrap_or(0))));
                continue;
            }
            let is_draft = index > 0 && span.purpose == Purpose::Verify;
            going &= !is_draft || last.is_some_and(|(_, chosen)| chosen == token);
            if !going {
                continue;
            }
            match self.pick(logits, text) {
                Ok((picked, ends)) => {
                    last = Some((row.pos, picked.id));
                    over = ends;
                    outcome.chosen.push(picked);
                }
                Err(fault) => outcome.fault = Some(fault),
            }
            going = !over && outcome.fault.is_none();
        }
        let wants = span.drafts && !over && outcome.fault.is_none();
        let question = last.filter(|_| wants).map(|(pos, token)| (DraftRow { seq: span.seq, token }, pos + 1));
        (outcome, question.filter(|(_, rows)| rows + WINDOW <= self.opening.kv_rows))
    }

    /// The next token, and whether it is the last one.
    fn pick(&mut self, logits: &[f32], text: &dyn TextModel) -> Result<(Picked, bool), TailError> {
        let picker = self.picker.as_mut().map_err(|fault| fault.clone())?;
        let token = picker.pick(logits)?;
        let over = picker.is_over();
        self.chosen += 1;
        let ends = over || self.chosen >= self.opening.budget || (text.is_eog(token) && !self.opening.ignore_eos);
        Ok((Picked { over, ..self.picked(token, logits, self.opening.logprobs) }, ends))
    }

    /// `token` with its log-probability and `n` alternatives, if those are wanted.
    fn picked(&self, token: i32, logits: &[f32], n: Option<u8>) -> Picked {
        let Some(n) = n else { return Picked { id: token, ..Picked::default() } };
        let norm = LogSoftmax::new(logits);
        let chosen = usize::try_from(token).ok().and_then(|id| logits.get(id));
        let logprob = chosen.map(|&logit| norm.log_prob(logit));
        let mut top = top_n(logits, usize::from(n));
        top.iter_mut().for_each(|(_, value)| *value = norm.log_prob(*value));
        Picked { id: token, logprob, top, over: false }
    }
}

/// Refuses logits that are not `n` rows of `n_vocab` columns.
fn check_logits(logits: &[f32], n: usize, n_vocab: usize) -> Result<&[f32], StageError> {
    match logits.len() == n * n_vocab {
        true => Ok(logits),
        false => {
            Err(StageError::Engine(format!("{} logits came back for {n} rows of {n_vocab} columns", logits.len())))
        }
    }
}
