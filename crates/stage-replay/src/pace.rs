//! `pace`: ends the cycles of a replay in which nothing is trained.
//!
//! A cycle ends with a publication, and publications are made by trainers. This one has no weights: it reads what the
//! replayed stages wrote, so that a cycle ends once all of it is there, and publishes an empty version.

use std::collections::BTreeMap;

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_stage::{Input, Kind, Outputs, Parameters, Ports, Register, Stage, StageContext};

/// The kind of a model without weights, which `pace` trains.
pub const NO_WEIGHTS: &str = "none";

/// Groups of a mini-batch, which no trainer says.
const MINI_BATCH: &str = "actor_rollout_ref.actor.ppo_mini_batch_size";

/// Settings; `tq-run replay` fills them in.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The columns that a cycle's rows must have when it ends, with their types.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub columns: BTreeMap<String, Kind>,
}

/// The stage.
pub struct Pace {
    config: Config,
    mini_batch: u64,
}

impl Stage for Pace {
    fn ports(&self) -> Ports {
        let inputs = self.config.columns.iter().map(|(name, kind)| Input::new(name, kind.clone())).collect();
        Ports::new(inputs, vec![]).model(NO_WEIGHTS).trains(self.mini_batch, MINI_BATCH, 1)
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        cx.begin(self)?;
        while let Some(work) = cx.claim(u64::MAX)? {
            let cut = work.cut()?.clone();
            work.commit(Outputs::new())?;
            if cut.last {
                cx.publish(self, cut.cycle)?;
            }
        }
        Ok(())
    }
}

impl Register for Pace {
    const NAME: &'static str = "pace";
    type Config = Config;

    fn new(config: Config, parameters: &Parameters) -> Result<Self> {
        Ok(Self { config, mini_batch: parameters.get(MINI_BATCH)? })
    }
}
