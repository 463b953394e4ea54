//! A model for scoring whose weights are those of one published version at a time.

use anyhow::{Context, Result, bail};
use tq_model::{Decoder, Model, ModelConfig, Placement, TorchModel, weights::Head};
use tq_stage::{StageContext, Version, Weights};

use crate::convert::to_engine;

/// The model and the version it holds.
pub struct Follower {
    config: ModelConfig,
    head: Head,
    placement: Placement,
    weights: Weights,
    rule: Version,
    loaded: Option<(u64, TorchModel)>,
}

impl Follower {
    /// For the stage's model; reads `config.json` and nothing more.
    ///
    /// # Errors
    /// When the stage has no model or its folder cannot be read.
    pub fn new(cx: &StageContext, head: Head, placement: Placement) -> Result<Self> {
        let model = cx.model()?;
        let config = ModelConfig::from_folder(&model.path).with_context(|| format!("model `{}`", model.name))?;
        let rule = model.version.with_context(|| {
            format!("stage `{}` scores with model `{}`; say which weights: @live, @cycle or @0", cx.stage(), model.name)
        })?;
        Ok(Self { config, head, placement, weights: cx.weights()?, rule, loaded: None })
    }

    /// The model at the weights that the pipeline names: `@0` the initial ones, `@cycle` and `@live` those at the start
    /// of `cycle` (for work that is not cut into cycles, `@live` is the newest).
    ///
    /// # Errors
    /// When the version is not published within the run's patience, or does not fit the model.
    pub fn at(&mut self, cycle: Option<u64>) -> Result<&mut dyn Model> {
        let version = match (self.rule, cycle) {
            (Version::Initial, _) => Some(0),
            (Version::Cycle | Version::Live, Some(cycle)) => Some(cycle),
            (Version::Live, None) => None,
            (Version::Cycle, None) => bail!("weights `@cycle` need a stage that claims `per: mini` or `per: cycle`"),
        };
        let pinned = match (&self.loaded, version) {
            (Some((held, _)), Some(wanted)) if *held == wanted => None,
            _ => Some(self.weights.pin(version)?),
        };
        if let Some(pinned) = pinned {
            let found = pinned.version().version;
            let tensors = to_engine(&self.weights.read(&pinned)?)?;
            match &mut self.loaded {
                Some((held, model)) => {
                    model.load_weights(&tensors)?;
                    *held = found;
                }
                None => {
                    let decoder = Decoder::from_named(&self.config, self.head, self.placement, &tensors)?;
                    self.loaded = Some((found, TorchModel::new(decoder)));
                }
            }
        }
        let (_, model) = self.loaded.as_mut().context("a version was loaded above")?;
        Ok(model)
    }
}
