//! verl's sampling parameters as the generator's.

use anyhow::Result;
use serde::Deserialize;
use tq_model::generate::Sampling;
use tq_stage::Range;

/// Keys of `rollout` and of `rollout.val_kwargs`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SamplingSettings {
    temperature: f64,
    /// −1 or 0: all.
    top_k: i64,
    top_p: f64,
    do_sample: bool,
}

impl SamplingSettings {
    pub(crate) fn check(&self, key: &str) -> Result<()> {
        Range::AtLeast(0.0).check(format!("{key}.temperature"), self.temperature)?;
        Range::MinusOneOr("all", 0.0).check(format!("{key}.top_k"), self.top_k as f64)?;
        Range::AboveUpTo(0.0, 1.0).check(format!("{key}.top_p"), self.top_p)?;
        Ok(())
    }

    /// Whether tokens are drawn from the whole distribution, so that their log-probs are those of the policy.
    pub(crate) fn is_full(&self) -> bool {
        self.do_sample && self.top_k <= 0 && self.top_p >= 1.0
    }

    pub(crate) fn sampling(&self) -> Sampling {
        if !self.do_sample || self.temperature == 0.0 {
            return Sampling::GREEDY;
        }
        let top_k = usize::try_from(self.top_k).ok().filter(|&k| k > 0);
        Sampling { temperature: self.temperature, top_k, top_p: self.top_p }
    }
}
