//! Policy losses by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Cispo, ClipCov, Divergence, Dppo, Dro, GeoMean, Gpg, Gspo, KlCov, PolicyLoss, Sapo, Vanilla};
use crate::error::{Error, Result};

/// The parameters that policy losses are made from, by verl's names (`actor.*` and `actor.policy_loss.*`).
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// How far a ratio may move from 1, on sides for which nothing else is said.
    pub clip_ratio: f64,
    /// How far a ratio may fall below 1; `None`: `clip_ratio`.
    pub clip_ratio_low: Option<f64>,
    /// How far a ratio may rise above 1; `None`: `clip_ratio`.
    pub clip_ratio_high: Option<f64>,
    /// The dual clip's bound; above 1.
    pub clip_ratio_c: f64,
    /// `sapo`: τ where A > 0.
    pub tau_pos: f64,
    /// `sapo`: τ elsewhere.
    pub tau_neg: f64,
    /// `clip_cov`: share of tokens to silence.
    pub clip_cov_ratio: f64,
    /// `clip_cov`: least covariance of a candidate.
    pub clip_cov_lb: f64,
    /// `clip_cov`: largest covariance of a candidate.
    pub clip_cov_ub: f64,
    /// `kl_cov`: share of tokens to hold back.
    pub kl_cov_ratio: f64,
    /// `kl_cov`: how strongly.
    pub ppo_kl_coef: f64,
    /// `dro`: strength of the pull; must be given.
    pub dro_beta: Option<f64>,
}

impl Default for Params {
    /// verl's defaults, except that `clip_ratio` counts wherever the other two are not given.
    fn default() -> Self {
        Params {
            clip_ratio: 0.2,
            clip_ratio_low: None,
            clip_ratio_high: None,
            clip_ratio_c: 3.0,
            tau_pos: 1.0,
            tau_neg: 1.05,
            clip_cov_ratio: 2e-4,
            clip_cov_lb: 1.0,
            clip_cov_ub: 5.0,
            kl_cov_ratio: 2e-4,
            ppo_kl_coef: 0.1,
            dro_beta: None,
        }
    }
}

impl Params {
    fn low(&self) -> f64 {
        self.clip_ratio_low.unwrap_or(self.clip_ratio)
    }

    fn high(&self) -> f64 {
        self.clip_ratio_high.unwrap_or(self.clip_ratio)
    }
}

type Make = Arc<dyn Fn(&Params) -> Result<Box<dyn PolicyLoss>> + Send + Sync>;

/// Policy losses by name: the built-in ones, and those that a program adds.
#[derive(Clone)]
pub struct Registry {
    makers: BTreeMap<String, Make>,
}

impl Registry {
    /// `cispo`, `clip_cov`, `dppo_kl`, `dppo_tv`, `dro`, `geo_mean`, `gpg`, `gspo`, `kl_cov`, `sapo`, `vanilla`.
    pub fn builtin() -> Self {
        let mut registry = Registry { makers: BTreeMap::new() };
        let mut add = |name: &str, make: fn(&Params) -> Result<Box<dyn PolicyLoss>>| {
            registry.makers.insert(name.into(), Arc::new(make));
        };
        add("vanilla", |p| {
            if p.clip_ratio_c <= 1.0 {
                return Err(parameter("clip_ratio_c", p.clip_ratio_c, "a number above 1"));
            }
            Ok(Box::new(Vanilla { low: p.low(), high: p.high(), c: p.clip_ratio_c }))
        });
        add("cispo", |p| Ok(Box::new(Cispo { low: p.low(), high: p.high() })));
        add("sapo", |p| {
            Ok(Box::new(Sapo { tau_pos: positive("tau_pos", p.tau_pos)?, tau_neg: positive("tau_neg", p.tau_neg)? }))
        });
        add("gpg", |_| Ok(Box::new(Gpg)));
        add("dro", |p| Ok(Box::new(Dro { beta: positive("policy_loss.dro_beta", p.dro_beta.unwrap_or(f64::NAN))? })));
        add("dppo_tv", |p| Ok(Box::new(dppo(p, Divergence::TotalVariation))));
        add("dppo_kl", |p| Ok(Box::new(dppo(p, Divergence::BinaryKl))));
        add("gspo", |p| Ok(Box::new(Gspo { low: p.low(), high: p.high() })));
        add("geo_mean", |p| Ok(Box::new(GeoMean { low: p.low(), high: p.high() })));
        add("clip_cov", |p| {
            let ratio = positive("policy_loss.clip_cov_ratio", p.clip_cov_ratio)?;
            Ok(Box::new(ClipCov { low: p.low(), high: p.high(), ratio, lower: p.clip_cov_lb, upper: p.clip_cov_ub }))
        });
        add("kl_cov", |p| {
            let ratio = positive("policy_loss.kl_cov_ratio", p.kl_cov_ratio)?;
            Ok(Box::new(KlCov { ratio, coefficient: p.ppo_kl_coef }))
        });
        registry
    }

    /// Adds a loss of one's own.
    ///
    /// # Errors
    /// [`Error::AlreadyRegistered`] if the name is taken.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        make: impl Fn(&Params) -> Result<Box<dyn PolicyLoss>> + Send + Sync + 'static,
    ) -> Result<()> {
        let name = name.into();
        if self.makers.contains_key(&name) {
            return Err(Error::AlreadyRegistered { kind: "policy loss", name });
        }
        self.makers.insert(name, Arc::new(make));
        Ok(())
    }

    /// The registered names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.makers.keys().cloned().collect()
    }

    /// The loss `name`, made from `params`. verl: `actor.policy_loss.loss_mode`.
    ///
    /// # Errors
    /// [`Error::Unknown`] with the known names; [`Error::Parameter`] for a parameter outside its range.
    pub fn get(&self, name: &str, params: &Params) -> Result<Box<dyn PolicyLoss>> {
        let make = self.makers.get(name);
        let make =
            make.ok_or_else(|| Error::Unknown { kind: "policy loss", found: name.into(), known: self.names() })?;
        make(params)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.names()).finish()
    }
}

fn dppo(params: &Params, divergence: Divergence) -> Dppo {
    Dppo { divergence, low: params.low(), high: params.high(), c: params.clip_ratio_c }
}

fn parameter(name: &'static str, found: f64, expected: &'static str) -> Error {
    let found = if found.is_nan() { "none".into() } else { found.to_string() };
    Error::Parameter { name, found, expected }
}

fn positive(name: &'static str, value: f64) -> Result<f64> {
    if value > 0.0 { Ok(value) } else { Err(parameter(name, value, "a positive number")) }
}
