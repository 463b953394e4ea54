//! `thin-out`: a stage for tests that takes single rows out of groups.

use anyhow::Result;
use tq_stage::{Batch, Input, Map, MapContext, Output, Outputs, Parameters, Per, Ports, Register, Rows, ragged_f32};

/// Drops the second sample of every third prompt, and passes the scores of the others on as rewards.
pub struct ThinOut;

impl Map for ThinOut {
    fn ports(&self) -> Ports {
        let scores = Input::new("token_level_scores", ragged_f32());
        Ports::new(vec![scores], vec![Output::new("token_level_rewards", ragged_f32())]).per(Per::Group)
    }

    fn map(&mut self, batch: &Batch, _: &MapContext<'_>) -> Result<Outputs> {
        let scores = batch.ragged::<f32>("token_level_scores")?;
        let leaves = |row: &usize| batch.heads()[*row].ordinal.is_multiple_of(3) && batch.heads()[*row].sample == 1;
        let stay = (0..batch.len()).filter(|row| !leaves(row)).map(|row| scores.row(row).to_vec());
        let gone: Rows = (0..batch.len()).filter(leaves).map(|row| batch.heads()[row].row).collect();
        let outputs = Outputs::new().ragged("token_level_rewards", stay);
        Ok(if gone.is_empty() { outputs } else { outputs.drop_rows(gone, "thinned") })
    }
}

impl Register for ThinOut {
    const NAME: &'static str = "thin-out";
    type Config = serde_json::Value;

    fn new(_: serde_json::Value, _: &Parameters) -> Result<Self> {
        Ok(Self)
    }
}
