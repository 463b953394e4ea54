//! How a trainer comes to its first weights and gives out new ones.

use anyhow::{Context, Result, ensure};
use fail::fail_point;

use crate::{Stage, StageContext, StateReader, StateWriter};

impl StageContext {
    /// Restores a trainer from the newest published version and the state beside it. `false`: nothing is published yet,
    /// the run is new: load the initial weights and call [`StageContext::publish_initial`].
    ///
    /// # Errors
    /// When what was saved cannot be read or is not this trainer's.
    pub fn resume(&self, stage: &mut dyn Stage) -> Result<bool> {
        let weights = self.weights()?;
        let mut newest = weights.newest()?;
        if newest.offered {
            // A former self of this worker offered its part before it was lost: what comes of it is where to go on.
            weights.pin(Some(newest.version.map_or(0, |version| version.version + 1)))?;
            newest = weights.newest()?;
        }
        let Some(version) = newest.version else { return Ok(false) };
        let pinned = weights.pin(Some(version.version))?;
        let entries = newest.state.map(|state| weights.read_state(state)).transpose()?.unwrap_or_default();
        stage
            .restore(&StateReader::new(weights.read(&pinned)?, entries))
            .with_context(|| format!("stage `{}`, version {}", self.stage(), version.version))?;
        Ok(true)
    }

    /// Publishes the trainer's weights as version 0.
    ///
    /// # Errors
    /// When they cannot be saved or written.
    pub fn publish_initial(&self, stage: &dyn Stage) -> Result<()> {
        self.offer(stage, None).map(|_| ())
    }

    /// Where a trainer begins: the newest published state, or version 0, which rank 0 publishes and the others wait for.
    ///
    /// # Errors
    /// As [`StageContext::resume`] and [`StageContext::publish_initial`]; when version 0 does not come within the run's
    /// patience.
    pub fn begin(&self, stage: &mut dyn Stage) -> Result<()> {
        if self.resume(stage)? {
            return Ok(());
        }
        if self.rank() == 0 {
            return self.publish_initial(stage);
        }
        self.weights()?.pin(Some(0))?;
        let resumed = self.resume(stage)?;
        ensure!(resumed, "stage `{}`: version 0 was published and cannot be found", self.stage());
        Ok(())
    }

    /// Ends this trainer's part of `cycle`: writes weights and state and offers them. `Some(version)` once every
    /// training task has offered, which is the publication.
    ///
    /// # Errors
    /// When they cannot be saved or written, or rows of the cycle are not committed yet.
    pub fn publish(&self, stage: &dyn Stage, cycle: u64) -> Result<Option<u64>> {
        self.offer(stage, Some(cycle))
    }

    /// Makes `cycle` the last one if its metrics reach the level that the pipeline's `until` names. Called with the means
    /// of the whole cycle (none: every row of it was dropped), after its last batch is committed and before
    /// [`StageContext::publish`].
    ///
    /// # Errors
    /// When the metric is not among them.
    pub fn end_at_level(&self, cycle: u64, metrics: &[(&str, f64)]) -> Result<()> {
        let Some(level) = self.level() else { return Ok(()) };
        if metrics.is_empty() {
            return Ok(());
        }
        let found = metrics.iter().find(|(name, _)| *name == level.metric);
        let (_, value) = found.with_context(|| {
            let known: Vec<_> = metrics.iter().map(|(name, _)| *name).collect();
            format!(
                "the phase ends at {level}, and stage `{}` reports no such metric; it reports: {}",
                self.stage(),
                known.join(", ")
            )
        })?;
        if level.is_reached(*value) {
            tracing::info!(stage = self.stage(), cycle, "{value} reaches {level}: this cycle is the last");
            self.session().end_schedule(cycle)?;
        }
        Ok(())
    }

    fn offer(&self, stage: &dyn Stage, cycle: Option<u64>) -> Result<Option<u64>> {
        fail_point!("trainer::offer");
        let mut writer = StateWriter::new();
        stage.save(&mut writer).with_context(|| format!("stage `{}`: saving", self.stage()))?;
        let (tensors, entries) = writer.into_parts();
        let weights = self.weights()?;
        let mut newest = weights.newest()?;
        if cycle.is_some() && newest.version.is_none() {
            // Others still load their first weights, and version 0 is published with the last of them.
            weights.pin(Some(0))?;
            newest = weights.newest()?;
        }
        let version = newest.version.map_or(0, |v| v.version + 1);
        let partition = weights.write("weights", newest.lineage, version, &tensors)?;
        let state = weights.write("state", newest.lineage, version, &entries)?;
        let published = self.session().offer(&self.model()?.name, cycle, Some(partition), Some(state))?;
        self.report().pace();
        Ok(published)
    }
}
