//! The schedule: what may be admitted, in which order batches are cut, which weights they need.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The three named schedules. A preset sets every field; a pipeline may change each alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Generate, train, publish: nothing overlaps.
    OnPolicy,
    /// The next cycle is generated while this one trains.
    OneStepOff,
    /// Generation never stops; batches are cut as groups finish.
    FullyAsync,
}

impl Preset {
    /// The name in a pipeline.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OnPolicy => "on_policy",
            Self::OneStepOff => "one_step_off",
            Self::FullyAsync => "fully_async",
        }
    }
}

/// The order in which groups enter batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As they were admitted.
    Admission,
    /// As they were finished.
    Completion,
}

/// Which weights sample a row's first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsRule {
    /// Exactly those published when the group was admitted.
    Exact,
    /// Those, or any published later.
    AtLeast,
}

/// When training may start on a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grain {
    /// When the whole cycle is complete.
    Cycle,
    /// When a mini-batch is complete.
    Mini,
}

/// What generation does at a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPublication {
    /// Running generations finish on their weights.
    Finish,
    /// Running generations continue on the new weights.
    Continue,
}

/// Every field of a schedule, after the preset and the pipeline's own settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The preset it started from.
    pub preset: Preset,
    /// S: how many cycles ahead of training groups may be admitted; any real from 0 to 1,000.
    pub lag: f64,
    /// Order in which batches are cut.
    pub order: Order,
    /// Weights for the first token.
    pub weights: WeightsRule,
    /// When training starts.
    pub grain: Grain,
    /// Generation at a publication.
    pub on_publication: OnPublication,
    /// Largest lag a row may be trained with. Without `drop_beyond` it is at least [`Schedule::reach`], and groups that
    /// would exceed it at the next version are cut first and waited for.
    pub max_lag: Option<u64>,
    /// Instead of waiting for them, rows beyond `max_lag` are dropped and their groups replaced.
    pub drop_beyond: bool,
    /// Share of extra groups admitted per cycle, of which the slowest are dropped.
    pub oversample: f64,
    /// Cycles between two durable trainer states.
    pub state_every: u64,
}

impl Schedule {
    /// The fields a preset stands for.
    #[must_use]
    pub fn preset(preset: Preset) -> Self {
        let (lag, order, weights, grain, on_publication) = match preset {
            Preset::OnPolicy => (0.0, Order::Admission, WeightsRule::Exact, Grain::Cycle, OnPublication::Finish),
            Preset::OneStepOff => (1.0, Order::Admission, WeightsRule::Exact, Grain::Cycle, OnPublication::Finish),
            Preset::FullyAsync => (0.5, Order::Completion, WeightsRule::AtLeast, Grain::Mini, OnPublication::Continue),
        };
        Self {
            preset,
            lag,
            order,
            weights,
            grain,
            on_publication,
            max_lag: None,
            drop_beyond: false,
            oversample: 0.0,
            state_every: 1,
        }
    }

    /// ⌊S·B⌋: groups that may be ahead of the current cycle of `groups` groups. Exact in decimal, so that 0.29 × 100
    /// is 29.
    #[must_use]
    pub fn ahead(&self, groups: u64) -> u64 {
        floor_product(self.lag, groups)
    }

    /// The admission window B + ⌊S·B⌋: a group is admitted while `admitted − dropped − retired` is below it.
    #[must_use]
    pub fn window(&self, groups: u64) -> u64 {
        groups.saturating_add(self.ahead(groups))
    }

    /// ⌈⌊S·B⌋/B⌉: the lag that groups cut in admission order can reach, and the least that `max_lag` can hold them to
    /// without dropping any.
    #[must_use]
    pub fn reach(&self, groups: u64) -> u64 {
        self.ahead(groups).div_ceil(groups.max(1))
    }

    /// The largest lag a trained row can have, and why.
    #[must_use]
    pub fn largest_lag(&self, groups: u64) -> LagPromise {
        let ahead = self.ahead(groups);
        if ahead == 0 {
            return LagPromise {
                largest: Some(0),
                why: "nothing is admitted before the cycle ahead of it is published".into(),
            };
        }
        let reach = self.reach(groups);
        let promise = |largest, why: &str| LagPromise { largest, why: why.into() };
        match (self.order, self.max_lag) {
            (Order::Admission, Some(limit)) if self.drop_beyond && limit < reach => promise(Some(limit), BY_DROPPING),
            (Order::Admission, _) => promise(
                Some(reach),
                &format!(
                    "batches are cut in admission order and at most {ahead} groups are ahead of a cycle of {groups}"
                ),
            ),
            (Order::Completion, Some(limit)) if self.drop_beyond => promise(Some(limit), BY_DROPPING),
            (Order::Completion, Some(limit)) if limit >= reach => promise(
                Some(limit),
                "batches are cut in completion order, but groups that would exceed max_lag at the next version are \
                 cut first and waited for; nothing is dropped",
            ),
            (Order::Completion, _) => promise(
                None,
                "batches are cut in completion order, so a slow group can wait through any number of publications; \
                 max_lag bounds it",
            ),
        }
    }

    /// Whether a run is bit for bit repeatable on CPU at a fixed number of threads: whole cycles, and either nothing
    /// ahead or admission order on exact weights that running generations finish on.
    #[must_use]
    pub fn is_repeatable(&self, groups: u64) -> bool {
        self.grain == Grain::Cycle
            && (self.ahead(groups) == 0
                || (self.order == Order::Admission
                    && self.weights == WeightsRule::Exact
                    && self.on_publication == OnPublication::Finish))
    }
}

const BY_DROPPING: &str = "rows beyond max_lag are dropped and their groups replaced";

/// The largest lag a plan promises.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LagPromise {
    /// `None`: no bound.
    pub largest: Option<u64>,
    /// The rule it follows from.
    pub why: String,
}

impl fmt::Display for LagPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.largest {
            Some(lag) => write!(f, "{lag}: {}", self.why),
            None => write!(f, "unbounded: {}", self.why),
        }
    }
}

/// ⌊factor · count⌋ for the decimal number that `factor` prints as. Negative and non-finite factors give 0.
fn floor_product(factor: f64, count: u64) -> u64 {
    if !factor.is_finite() || factor <= 0.0 {
        return 0;
    }
    let text = format!("{factor}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    // 20 decimals keep the product within u128; a share smaller than that of a group is none.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10u128.pow(u32::try_from(fraction.len()).expect("at most 18 digits"));
    let digits = |s: &str| {
        if s.is_empty() { Some(0) } else { s.parse::<u128>().ok() }
    };
    let product = digits(whole)
        .and_then(|w| w.checked_mul(scale))
        .and_then(|w| digits(fraction).and_then(|f| w.checked_add(f)))
        .and_then(|scaled| scaled.checked_mul(u128::from(count)))
        .map(|scaled| scaled / scale);
    product.map_or(u64::MAX, |p| u64::try_from(p).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_the_table_of_the_design() {
        let one = Schedule::preset(Preset::OneStepOff);
        assert_eq!(
            (one.lag, one.order, one.weights, one.grain),
            (1.0, Order::Admission, WeightsRule::Exact, Grain::Cycle)
        );
        assert_eq!(one.on_publication, OnPublication::Finish);
        let on = Schedule::preset(Preset::OnPolicy);
        assert_eq!(Schedule { preset: Preset::OneStepOff, lag: 1.0, ..on }, one);
        let fully = Schedule::preset(Preset::FullyAsync);
        assert_eq!((fully.order, fully.weights, fully.grain), (Order::Completion, WeightsRule::AtLeast, Grain::Mini));
        assert_eq!(fully.on_publication, OnPublication::Continue);
    }

    fn with_lag(preset: Preset, lag: f64) -> Schedule {
        Schedule { lag, ..Schedule::preset(preset) }
    }

    #[test]
    fn groups_ahead_are_exact_in_decimal() {
        for (lag, groups, ahead) in [
            (0.0, 100, 0),
            (0.29, 100, 29),
            (0.7, 10, 7),
            (0.1, 3, 0),
            (0.5, 63, 31),
            (1.0, 64, 64),
            (2.25, 4, 9),
            (1e-9, 64, 0),
            (0.999_999_999_999, 10, 9),
            (1e22, 64, u64::MAX),
        ] {
            let schedule = with_lag(Preset::FullyAsync, lag);
            assert_eq!(schedule.ahead(groups), ahead, "{lag} × {groups}");
            assert_eq!(schedule.window(groups), groups.saturating_add(ahead));
        }
    }

    #[test]
    fn the_largest_lag_follows_from_order_and_window() {
        let largest = |schedule: &Schedule, groups| schedule.largest_lag(groups).largest;
        assert_eq!(largest(&with_lag(Preset::OnPolicy, 0.0), 64), Some(0));
        assert_eq!(largest(&with_lag(Preset::FullyAsync, 0.0), 64), Some(0));
        assert_eq!(largest(&with_lag(Preset::FullyAsync, 0.001), 64), Some(0), "less than a group ahead");
        assert_eq!(largest(&with_lag(Preset::OneStepOff, 1.0), 64), Some(1));
        assert_eq!(largest(&with_lag(Preset::OneStepOff, 1.5), 64), Some(2));
        assert_eq!(largest(&with_lag(Preset::OneStepOff, 0.1), 64), Some(1));
        assert_eq!(largest(&with_lag(Preset::FullyAsync, 0.5), 64), None);
        let waiting = |lag| Schedule { max_lag: Some(1), ..with_lag(Preset::FullyAsync, lag) };
        assert_eq!(largest(&waiting(0.5), 64), Some(1));
        assert_eq!(largest(&waiting(1.0), 64), Some(1));
        assert_eq!(largest(&waiting(1.5), 64), None, "a limit that cannot be kept");
        assert!(waiting(0.5).largest_lag(64).why.contains("waited for"));
        let dropping = Schedule { drop_beyond: true, ..waiting(1.5) };
        assert_eq!(largest(&dropping, 64), Some(1));
        assert!(dropping.largest_lag(64).why.contains("dropped and"));
        let both = Schedule { max_lag: Some(1), drop_beyond: true, ..with_lag(Preset::OneStepOff, 3.0) };
        assert_eq!(largest(&both, 64), Some(1));
        let loose = Schedule { max_lag: Some(9), drop_beyond: true, ..with_lag(Preset::OneStepOff, 3.0) };
        assert_eq!(largest(&loose, 64), Some(3));
    }

    #[test]
    fn repeatable_means_whole_cycles_and_no_race() {
        assert!(with_lag(Preset::OnPolicy, 0.0).is_repeatable(64));
        assert!(with_lag(Preset::OneStepOff, 1.0).is_repeatable(64));
        assert!(!with_lag(Preset::FullyAsync, 0.5).is_repeatable(64));
        assert!(!with_lag(Preset::FullyAsync, 0.0).is_repeatable(64), "mini-batches as they complete");
        assert!(Schedule { grain: Grain::Cycle, ..with_lag(Preset::FullyAsync, 0.0) }.is_repeatable(64));
        let racing = Schedule { on_publication: OnPublication::Continue, ..with_lag(Preset::OneStepOff, 1.0) };
        assert!(!racing.is_repeatable(64));
    }
}
