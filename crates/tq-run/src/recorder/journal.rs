//! The journal: one thread that writes down every publication, in order.

use std::{collections::VecDeque, fs, sync::Arc, time::Instant};

use anyhow::{Context, Result};
use fail::fail_point;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tq_metrics::Metrics;
use tq_schedule::{
    Plan,
    plan::{self, Phase},
};
use transferqueue::{Durability, Store, audit::Audit, catalog::Publication, snapshot::Captured};

use super::{Origin, board::Board, lines::Lines};
use crate::{folder::PhaseFolder, ground::ended, interrupt, settings};

/// A publication as the hook posts it.
pub(super) struct Step {
    /// What was published, and every row it consumed.
    pub(super) published: Publication,
    /// Whether the run is over with it.
    pub(super) over: bool,
    /// The position to name, if it is to be named.
    pub(super) capture: Option<Captured>,
}

/// What reaches the journal.
pub(super) enum Message {
    Published(Step),
    Validated { version: u64, metrics: Metrics },
    Interrupted,
}

/// The validation rounds of a phase.
#[derive(Clone, Copy)]
struct Rounds {
    /// One after every so many versions, and after the last; `None`: none at all. (0: after the last alone.)
    every: Option<u64>,
    /// Whether one runs before the first update.
    first: bool,
}

impl Rounds {
    fn of(phase: &Phase) -> Self {
        let first = phase.parameters.pointer("/trainer/val_before_train").and_then(serde_json::Value::as_bool);
        let every = phase.partitions.values().find_map(|partition| match partition.rows {
            plan::Rows::Expand { every, .. } => every,
            _ => None,
        });
        Self { every, first: first.unwrap_or(true) }
    }

    /// Whether one follows the publication of a version; `over`: it is the last.
    fn follow(self, version: u64, over: bool) -> bool {
        self.every.is_some_and(|every| match version {
            0 => self.first,
            version => over || (every > 0 && version % every == 0),
        })
    }
}

/// The journal's state.
pub(super) struct Journal {
    store: Store,
    board: Arc<Board>,
    folder: PhaseFolder,
    lines: Lines,
    audit: Audit,
    bar: ProgressBar,
    rounds: Rounds,
    named: u64,
    states: VecDeque<u64>,
    /// How many of them are kept; `None`: all.
    kept_states: Option<usize>,
    last_step: Instant,
    last_reward: Option<f64>,
}

impl Journal {
    pub(super) fn open(
        store: Store,
        board: Arc<Board>,
        plan: &Plan,
        phase: &Phase,
        folder: PhaseFolder,
        origin: &Origin,
        progress: bool,
    ) -> Result<Self> {
        let total = phase.arithmetic.total_cycles.context("the phase's length is known once it runs")?;
        folder.sweep()?;
        let keeps = plan.store.durability > Durability::None;
        let mut lines = Lines::open(&folder, &settings::loggers(plan)?, origin, keeps)?;
        let kept_states = settings::kept_states(plan)?;
        let mut audit = Audit::open(&folder.file("audit.jsonl"))?;
        let rounds = Rounds::of(phase);
        match origin {
            Origin::Beginning => {}
            Origin::State(steps) => {
                audit.rollback(*steps)?;
                // A cycle's batches are cut after the publication before it: none of them is archived in the state.
                stage_archive::rollback(&folder.archive(), *steps, false)?;
            }
            Origin::There(gap) => {
                // Batches of the cycle in progress may be done; workers in processes may have outlived the store.
                stage_archive::rollback(&folder.archive(), gap.steps + 1, true)?;
                // After the machine went down the audit may even be ahead of the log.
                audit.rollback(gap.audited.saturating_sub(1).min(gap.steps))?;
                let definition = store.definition();
                for publication in &gap.publications {
                    let steps = publication.cycle.map_or(0, |cycle| cycle + 1);
                    audit.append(publication, &definition, steps)?;
                    lines.recover(steps, rounds.follow(publication.version, steps == total))?;
                }
            }
        }
        let named = match origin {
            Origin::There(gap) => gap.named,
            other => other.steps(),
        };
        let bar = ProgressBar::with_draw_target(
            Some(total),
            if progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {elapsed} eta {eta} {msg}")
            .context("progress template")?;
        bar.set_style(style);
        bar.set_prefix(phase.name.clone());
        bar.set_position(origin.steps());
        let states = folder.named_states()?.into_iter().map(|(steps, _)| steps).collect();
        Ok(Self {
            store,
            board,
            folder,
            lines,
            audit,
            bar,
            rounds,
            named,
            states,
            kept_states,
            last_step: Instant::now(),
            last_reward: None,
        })
    }

    /// Writes until the board is closed; returns the steps of the last named state. An error stops the store: a run
    /// whose record cannot be kept must not go on.
    pub(super) fn run(mut self) -> Result<u64> {
        while let Some(message) = self.board.next() {
            let outcome = match message {
                Message::Published(step) => self.published(step),
                Message::Validated { version, metrics } => self.validated(version, metrics),
                Message::Interrupted => {
                    let text = "stopping after this step; Ctrl-C again stops at once";
                    if self.bar.is_hidden() {
                        tracing::warn!("{text}")
                    } else {
                        self.bar.println(text)
                    }
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                self.store.stop(format!("the run's record cannot be written: {error:#}"));
                self.board.close();
                return Err(error);
            }
        }
        // A store that is broken has not ended.
        let ended = self.store.with_state(|state, _| ended(state)).unwrap_or(false);
        self.lines.close(ended)?;
        self.bar.finish_and_clear();
        Ok(self.named)
    }

    fn published(&mut self, step: Step) -> Result<()> {
        fail_point!("journal::published");
        let Step { published, over, capture } = step;
        let steps = published.cycle.map_or(0, |cycle| cycle + 1);
        let mut metrics = self.board.take(published.cycle);
        if let Some(cycle) = published.cycle {
            self.audit.append(&published, &self.store.definition(), steps)?;
            fail_point!("journal::audited");
            let seconds = self.last_step.elapsed().as_secs_f64();
            self.last_step = Instant::now();
            metrics.set("training/global_step", steps as f64);
            metrics.set("timing_s/step", seconds);
            if let Some(tokens) = metrics.get("perf/total_num_tokens") {
                metrics.set("perf/time_per_step", seconds);
                metrics.set("perf/throughput", tokens / seconds);
            }
            self.show(cycle, &metrics);
        }
        let waits = self.rounds.follow(published.version, over);
        if published.cycle.is_some() || waits {
            self.lines.add(steps, metrics, waits)?;
        }
        if let Some(capture) = capture {
            self.name(steps, capture)?;
            if interrupt::requested() {
                self.store.stop("interrupted");
            }
        }
        Ok(())
    }

    fn validated(&mut self, version: u64, metrics: Metrics) -> Result<()> {
        let core: Vec<String> = metrics
            .iter()
            .filter(|(name, _)| name.starts_with("val-core/"))
            .map(|(name, value)| format!("{name} {value:.3}"))
            .collect();
        self.bar.println(format!("step {version}: {}", core.join("  ")));
        self.lines.validated(version, metrics)
    }

    /// Names a state: writes it beside, with the held lines, and renames it into place.
    fn name(&mut self, steps: u64, capture: Captured) -> Result<()> {
        let (state, tmp) = (self.folder.checkpoint(steps), self.folder.writing());
        for left in [&tmp, &state] {
            // A state of these steps that is here already was rolled back past.
            if left.exists() {
                fs::remove_dir_all(left).with_context(|| format!("cannot delete `{}`", left.display()))?;
            }
        }
        capture.write(&tmp)?;
        self.lines.save(&tmp)?;
        fail_point!("journal::naming");
        fs::rename(&tmp, &state).with_context(|| format!("cannot name `{}`", state.display()))?;
        fail_point!("journal::named");
        self.named = steps;
        self.states.retain(|&s| s != steps);
        self.states.push_back(steps);
        while self.kept_states.is_some_and(|kept| self.states.len() > kept)
            && let Some(old) = self.states.pop_front()
        {
            let path = self.folder.checkpoint(old);
            fs::remove_dir_all(&path).with_context(|| format!("cannot delete `{}`", path.display()))?;
        }
        Ok(())
    }

    fn show(&mut self, cycle: u64, metrics: &Metrics) {
        self.last_reward = metrics.get("critic/score/mean").or(metrics.get("train/loss")).or(self.last_reward);
        let mut parts = Vec::new();
        for (label, name) in [
            ("reward", "critic/score/mean"),
            ("loss", "train/loss"),
            ("lag", "lag/mean"),
            ("tokens/s", "perf/throughput"),
        ] {
            if let Some(value) = metrics.get(name) {
                parts.push(format!("{label} {value:.3}"));
            }
        }
        if let Some(wait) = self.board.waiting_for() {
            parts.push(wait);
        }
        self.bar.set_position(cycle + 1);
        self.bar.set_message(parts.join("  "));
    }
}
