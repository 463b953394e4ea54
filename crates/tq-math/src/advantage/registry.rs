//! Estimators by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{
    Alignment, Estimator, Gae, Gdpo, Gpg, Grpo, GrpoPassk, Opo, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Remax,
    Rloo, RlooSingleton, TokenBaseline,
};
use crate::error::{Error, Result};

/// The parameters that estimators are made from, by verl's names (`algorithm.*`).
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Discount per token, 0 to 1.
    pub gamma: f64,
    /// λ of generalised advantage estimation, 0 to 1.
    pub lam: f64,
    /// Whether group estimators divide by the group's standard deviation (off: Dr. GRPO).
    pub norm_adv_by_std_in_grpo: bool,
    /// `gdpo`: the parts of the reward.
    pub gdpo_reward_keys: Vec<String>,
    /// `gdpo`: their weights; empty means 1 each.
    pub gdpo_reward_weights: Vec<f64>,
    /// `gpg`: the constant divisor.
    pub f_norm: f64,
    /// Token baselines: no baseline where only the longest response of a group has tokens.
    pub handle_zero_tail: bool,
}

impl Default for Params {
    /// verl's defaults.
    fn default() -> Self {
        Params {
            gamma: 1.0,
            lam: 1.0,
            norm_adv_by_std_in_grpo: true,
            gdpo_reward_keys: Vec::new(),
            gdpo_reward_weights: Vec::new(),
            f_norm: 1.0,
            handle_zero_tail: true,
        }
    }
}

type Make = Arc<dyn Fn(&Params) -> Result<Box<dyn Estimator>> + Send + Sync>;

/// Estimators by name: the built-in ones, and those that a program adds.
#[derive(Clone)]
pub struct Registry {
    makers: BTreeMap<String, Make>,
}

impl Registry {
    /// `gae`, `gdpo`, `gpg`, `grpo`, `grpo_passk`, `grpo_vectorized`, `opo`, `optimal_token_baseline`, `reinforce_plus_plus`,
    /// `reinforce_plus_plus_baseline`, `remax`, `rloo`, `rloo_vectorized`, `tir_optimal_token_baseline`.
    pub fn builtin() -> Self {
        let mut registry = Registry { makers: BTreeMap::new() };
        let mut add = |name: &str, make: fn(&Params) -> Result<Box<dyn Estimator>>| {
            registry.makers.insert(name.into(), Arc::new(make));
        };
        add("gae", |p| Ok(Box::new(Gae { gamma: unit("gamma", p.gamma)?, lam: unit("lam", p.lam)? })));
        add("grpo", |p| Ok(Box::new(Grpo { by_std: p.norm_adv_by_std_in_grpo })));
        add("grpo_vectorized", |p| Ok(Box::new(Grpo { by_std: p.norm_adv_by_std_in_grpo })));
        add("grpo_passk", |p| Ok(Box::new(GrpoPassk { by_std: p.norm_adv_by_std_in_grpo })));
        add("gdpo", gdpo);
        add("reinforce_plus_plus", |p| Ok(Box::new(ReinforcePlusPlus { gamma: unit("gamma", p.gamma)? })));
        add("reinforce_plus_plus_baseline", |_| Ok(Box::new(ReinforcePlusPlusBaseline)));
        add("remax", |_| Ok(Box::new(Remax)));
        add("rloo", |_| Ok(Box::new(Rloo { singleton: RlooSingleton::Score })));
        add("rloo_vectorized", |_| Ok(Box::new(Rloo { singleton: RlooSingleton::Zero })));
        add("opo", |_| Ok(Box::new(Opo)));
        add("gpg", gpg);
        add("optimal_token_baseline", |p| {
            Ok(Box::new(TokenBaseline { alignment: Alignment::Position, handle_zero_tail: p.handle_zero_tail }))
        });
        add("tir_optimal_token_baseline", |p| {
            Ok(Box::new(TokenBaseline { alignment: Alignment::Generated, handle_zero_tail: p.handle_zero_tail }))
        });
        registry
    }

    /// Adds an estimator of one's own.
    ///
    /// # Errors
    /// [`Error::AlreadyRegistered`] if the name is taken.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        make: impl Fn(&Params) -> Result<Box<dyn Estimator>> + Send + Sync + 'static,
    ) -> Result<()> {
        let name = name.into();
        if self.makers.contains_key(&name) {
            return Err(Error::AlreadyRegistered { kind: "advantage estimator", name });
        }
        self.makers.insert(name, Arc::new(make));
        Ok(())
    }

    /// The registered names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.makers.keys().cloned().collect()
    }

    /// The estimator `name`, made from `params`. verl: `algorithm.adv_estimator`.
    ///
    /// # Errors
    /// [`Error::Unknown`] with the known names; [`Error::Parameter`] for a parameter outside its range.
    pub fn get(&self, name: &str, params: &Params) -> Result<Box<dyn Estimator>> {
        let make = self.makers.get(name).ok_or_else(|| Error::Unknown {
            kind: "advantage estimator",
            found: name.into(),
            known: self.names(),
        })?;
        make(params)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.names()).finish()
    }
}

fn unit(name: &'static str, value: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(Error::Parameter { name, found: value.to_string(), expected: "a number from 0 to 1" })
}

fn gdpo(params: &Params) -> Result<Box<dyn Estimator>> {
    let (keys, weights) = (&params.gdpo_reward_keys, &params.gdpo_reward_weights);
    if keys.is_empty() {
        return Err(Error::Parameter {
            name: "gdpo_reward_keys",
            found: "none".into(),
            expected: "the names of the reward's parts",
        });
    }
    if !weights.is_empty() && weights.len() != keys.len() {
        return Err(Error::Parameter {
            name: "gdpo_reward_weights",
            found: format!("{} weights for {} keys", weights.len(), keys.len()),
            expected: "one weight per key of gdpo_reward_keys, or none",
        });
    }
    let weight = |i: usize| weights.get(i).copied().unwrap_or(1.0);
    let parts = keys.iter().enumerate().map(|(i, key)| (key.clone(), weight(i))).collect();
    Ok(Box::new(Gdpo { parts, by_std: params.norm_adv_by_std_in_grpo }))
}

fn gpg(params: &Params) -> Result<Box<dyn Estimator>> {
    if params.f_norm > 0.0 {
        return Ok(Box::new(Gpg { f_norm: params.f_norm }));
    }
    Err(Error::Parameter { name: "f_norm", found: params.f_norm.to_string(), expected: "a positive number" })
}
