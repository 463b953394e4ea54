//! The training loop: claim a cut batch, update, commit, and publish at the cycle's end.
//!
//! The trainer holds the model between batches; all else it needs to go on after a crash is what [`Stage::save`] writes.
//! As one rank of several it has a share of each batch: gradients are added up before each step, so that every rank holds
//! the same model and the same optimizer state.

use std::time::Instant;

use anyhow::{Context, Result};
use fail::fail_point;
use serde::Deserialize;
use tq_model::{Model, ModelConfig, TorchModel, weights::DType};
use tq_stage::{
    Batch, Outputs, Parameters, Ports, Range, Register, Stage, StageContext, StateReader, StateWriter, Work,
};

use crate::{
    Alone, Collective, Objective, OptimSettings, OverStore, Sums, Totals, convert,
    pack::Bounds,
    placement::{dtype, trained_placement},
};

/// Keys of a training section that every objective honours.
#[derive(Clone, Debug, Deserialize)]
pub struct TrainerSettings {
    /// Passes over each mini-batch.
    pub ppo_epochs: u64,
}

/// A stage that trains a model on an objective.
pub struct Trainer<O> {
    objective: O,
    settings: TrainerSettings,
    optim: OptimSettings,
    /// The type that products are computed in.
    dtype: DType,
    bounds: Bounds,
    mini_batch: u64,
    model: Option<TorchModel>,
    /// Metrics of the cycle in progress.
    metrics: Sums,
}

const TENSOR_PREFIX: &str = "training/";

/// Most passes over a mini-batch.
const MOST_EPOCHS: f64 = 1e6;

impl<O: Objective> Trainer<O> {
    fn model(&mut self) -> Result<&mut TorchModel> {
        self.model.as_mut().context("the trainer's model is loaded when the stage starts")
    }

    /// Loads the initial weights: the folder's, with a fresh value head where the objective wants one.
    fn load(&mut self, cx: &StageContext) -> Result<()> {
        let using = cx.model()?;
        let placement = trained_placement(cx, self.dtype)?;
        let schedule = cx.schedule();
        let updates = schedule.total_cycles.saturating_mul(schedule.minis_per_cycle);
        let updates = updates.saturating_mul(self.settings.ppo_epochs);
        ModelConfig::from_folder(&using.path).with_context(|| format!("model `{}`", using.name))?;
        let model = TorchModel::open(&using.path, O::HEAD, placement, cx.seed())
            .with_context(|| format!("model `{}`", using.name))?;
        self.model = Some(model.training(self.optim.options(updates))?);
        Ok(())
    }

    /// Ends a cycle. Rank 0 speaks for all: every rank holds the same weights, the same state and the same metrics.
    fn end(&mut self, cycle: u64, cx: &StageContext, rank: u64) -> Result<()> {
        let metrics = std::mem::take(&mut self.metrics);
        if rank == 0 {
            let means: Vec<_> = metrics.iter().map(|(name, value, _)| (name, value)).collect();
            cx.end_at_level(cycle, &means)?;
            let begun = Instant::now();
            cx.publish(self, cycle)?;
            cx.report().timing("update_weights", begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn types_section() -> &'static str {
        if O::SECTION == "critic" { "critic.fsdp" } else { "actor_rollout_ref.actor.fsdp_config" }
    }

    /// All updates of one claim: each mini-batch `ppo_epochs` times.
    fn train(&mut self, work: &mut Work, cx: &StageContext, gang: &mut dyn Collective) -> Result<()> {
        let cut = work.cut()?.clone();
        // What this rank has of each mini-batch, and how many rows all ranks have.
        let rows: Vec<u64> = match work.share() {
            Some(share) => share.totals.iter().map(|all| all.rows).collect(),
            None => cut.sizes.clone(),
        };
        let batch = if work.heads().is_empty() { None } else { Some(work.batch()?) };
        let sizes: Vec<usize> = cut.sizes.iter().map(|&n| n as usize).collect();
        let minis = batch.as_ref().map(|batch| batch.split(&sizes)).transpose()?;
        let mut progress = 0;
        for epoch in 0..self.settings.ppo_epochs {
            // A mini-batch that lost all its rows is no update; one of which only others have rows is.
            for (index, _) in rows.iter().enumerate().filter(|(_, rows)| **rows > 0) {
                let part = minis.as_ref().map(|minis| &minis[index]).filter(|part| !part.is_empty());
                self.update(part, (cut.cycle, epoch), (&mut *work, &mut progress), cx, gang)?;
            }
        }
        Ok(())
    }

    /// One optimizer step, on this rank's part of a mini-batch (`None`: it has no row of it).
    fn update(
        &mut self,
        part: Option<&Batch>,
        (cycle, epoch): (u64, u64),
        (work, progress): (&mut Work, &mut u64),
        cx: &StageContext,
        gang: &mut dyn Collective,
    ) -> Result<()> {
        let mut alive = || {
            *progress += 1;
            work.renew(*progress)
        };
        let mut sums = Sums::default();
        let mut mini = part.map(|part| self.objective.mini(part)).transpose()?;
        if let (Some(mini), Some(part), 0) = (&mini, part, epoch) {
            self.objective.describe(mini, part, cycle, &mut sums)?;
        }
        let own = mini.as_ref().map(|mini| self.objective.totals(mini)).unwrap_or_default();
        let mut totals = [own.tokens, own.rows];
        gang.sum(&mut totals, &mut alive)?;
        let model = self.model.as_mut().context("the model is loaded")?;
        if let Some(mini) = &mut mini {
            let (objective, want) = (&self.objective, self.objective.want());
            objective.set_totals(mini, Totals { tokens: totals[0], rows: totals[1] });
            for micro in objective.micros(mini, self.bounds)? {
                model.accumulate(&micro.packed, &want, &mut |stats| {
                    objective
                        .gradients(mini, &micro, stats, &mut sums)
                        .map_err(|e| tq_model::Error::loss(e.into_boxed_dyn_error()))
                })?;
                alive()?;
            }
        }
        gang.sum_gradients(model, &mut alive)?;
        // Every rank holds the sum: each clips by its norm and takes the same step.
        let report = model.step()?;
        fail_point!("trainer::updated");
        if gang.ranks() > 1 {
            let told = gang.gather(sums.pack(), &mut alive)?;
            sums = Sums::of_ranks(&told.iter().map(|bytes| Sums::unpack(bytes)).collect::<Result<Vec<_>>>()?);
        }
        sums.mean(&format!("{}/grad_norm", O::METRICS), report.grad_norm, 1.0);
        sums.mean(&format!("{}/lr", O::METRICS), report.lr, 1.0);
        if !report.applied {
            tracing::warn!(stage = cx.stage(), cycle, "update skipped: gradient norm is {}", report.grad_norm);
            sums.part("training/skipped_updates", 1.0);
        }
        self.metrics.merge(&sums);
        if gang.rank() == 0 {
            sums.iter().for_each(|(name, value, weight)| cx.report().metric(cycle, name, value, weight));
        }
        Ok(())
    }
}

impl<O: Objective> Stage for Trainer<O> {
    fn ports(&self) -> Ports {
        Ports::new(self.objective.inputs(), vec![])
            .model(O::MODEL)
            .trains(self.mini_batch, O::MINI_BATCH, self.settings.ppo_epochs)
            .sized_by(O::LENGTHS)
            .configured_by(&[O::SECTION])
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        self.load(cx)?;
        cx.begin(self)?;
        let mut gang: Box<dyn Collective> = match cx.join()? {
            Some(gang) => Box::new(OverStore::new(gang, cx.patience())),
            None => Box::new(Alone),
        };
        while let Some(mut work) = cx.claim(u64::MAX)? {
            let begun = Instant::now();
            let cut = work.cut()?.clone();
            self.train(&mut work, cx, gang.as_mut())
                .with_context(|| format!("stage `{}`, cycle {}, mini-batch {}", cx.stage(), cut.cycle, cut.index))?;
            work.commit(Outputs::new())?;
            fail_point!("trainer::committed");
            if gang.rank() == 0 {
                cx.report().timing(&format!("update_{}", O::METRICS), begun.elapsed().as_secs_f64());
            }
            if cut.last {
                // Once all have said so, every rank's rows are committed.
                gang.gather(Vec::new(), &mut || Ok(()))?;
                self.end(cut.cycle, cx, gang.rank())?;
            }
        }
        Ok(())
    }

    fn save(&self, to: &mut StateWriter) -> Result<()> {
        let model = self.model.as_ref().context("the trainer's model is loaded when the stage starts")?;
        to.weights(convert::to_store(&model.weights(model.decoder().placement().storage)?)?);
        for mut tensor in convert::to_store(&model.training_state()?)? {
            tensor.name.insert_str(0, TENSOR_PREFIX);
            to.tensor(tensor);
        }
        Ok(())
    }

    fn restore(&mut self, from: &StateReader) -> Result<()> {
        let state: Vec<_> = from
            .tensors(TENSOR_PREFIX)
            .map(|tensor| tq_stage::NamedTensor {
                name: tensor.name[TENSOR_PREFIX.len()..].to_owned(),
                ..tensor.clone()
            })
            .collect();
        let model = self.model()?;
        model.load_weights(&convert::to_engine(&from.weights)?)?;
        model.load_training_state(&convert::to_engine(&state)?)?;
        Ok(())
    }
}

impl<O: Objective> Register for Trainer<O> {
    const NAME: &'static str = O::NAME;
    type Config = O::Config;

    fn new(config: O::Config, parameters: &Parameters) -> Result<Self> {
        let settings: TrainerSettings = parameters.get(O::SECTION)?;
        Range::Within(1.0, MOST_EPOCHS).check(format!("{}.ppo_epochs", O::SECTION), settings.ppo_epochs as f64)?;
        Ok(Self {
            objective: O::new(config, parameters)?,
            settings,
            optim: OptimSettings::read(parameters, &format!("{}.optim", O::SECTION))?,
            dtype: dtype(parameters, &format!("{}.model_dtype", Self::types_section()))?,
            bounds: Bounds::from_parameters(
                parameters,
                &format!("{}.ppo_micro_batch_size_per_gpu", O::SECTION),
                &format!("{}.ppo_max_token_len_per_gpu", O::SECTION),
            )?,
            mini_batch: parameters.get(O::MINI_BATCH)?,
            model: None,
            metrics: Sums::default(),
        })
    }
}
