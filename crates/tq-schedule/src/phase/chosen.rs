//! The schedule a phase chose.

use tq_config::{Refusals, join};

use crate::entry;
use crate::planner::{Planner, section};
use crate::schedule::{Preset, Schedule};
use crate::scope::Scope;

/// Most cycles that groups may be ahead.
const MOST_LAG: f64 = 1_000.0;

/// Largest limit on the lag: more cycles than a run goes through while a group waits.
const MOST_MAX_LAG: u64 = 1_000_000;

/// The phase's schedule: its own, else the pipeline's, else `on_policy`.
pub(super) fn schedule(planner: &Planner<'_>, scope: &Scope, refusals: &mut Refusals) -> Option<Schedule> {
    let key = key(scope);
    if scope.pipeline.get(&key).is_none() {
        return Some(Schedule::preset(Preset::OnPolicy));
    }
    let entry::Schedule(fields) = section(&scope.pipeline, &key, refusals)?;
    let mut schedule = Schedule::preset(fields.preset.unwrap_or(Preset::OnPolicy));
    let count = refusals.0.len();
    let at = |field: &str| join(&key, field);
    if let Some(lag) = fields.lag {
        if !(0.0..=MOST_LAG).contains(&lag) {
            refusals.push(
                scope
                    .refuse(&at("lag"), format!("a lag of {lag}"), format!("a number of cycles from 0 to {MOST_LAG}"))
                    .action("0 means on-policy; 0.5 lets half a cycle be ahead"),
            );
        }
        schedule.lag = lag;
    }
    schedule.order = fields.order.unwrap_or(schedule.order);
    schedule.weights = fields.weights.unwrap_or(schedule.weights);
    schedule.grain = fields.grain.unwrap_or(schedule.grain);
    schedule.on_publication = fields.on_publication.unwrap_or(schedule.on_publication);
    schedule.max_lag = fields.max_lag;
    if let Some(limit) = fields.max_lag.filter(|limit| *limit > MOST_MAX_LAG) {
        let found = format!("a largest lag of {limit}");
        let refusal = scope.refuse(&at("max_lag"), found, format!("at most {MOST_MAX_LAG}"));
        refusals.push(refusal.action("leave it out when any lag will do"));
    }
    schedule.drop_beyond = fields.drop_beyond.unwrap_or(schedule.drop_beyond);
    if schedule.drop_beyond && schedule.max_lag.is_none() {
        refusals.push(scope.refuse(&at("drop_beyond"), "true without `max_lag`", "`max_lag` as well"));
    }
    if let Some(share) = fields.oversample {
        if !(share.is_finite() && share >= 0.0) {
            refusals.push(scope.refuse(&at("oversample"), format!("a share of {share}"), "0 or more"));
        } else if share > 0.0 && !planner.oversampling {
            let refusal = scope.refuse(&at("oversample"), format!("a share of {share}"), "0");
            refusals.push(refusal.action("this program does not admit more groups than it trains"));
        }
        schedule.oversample = share;
    }
    if let Some(cycles) = fields.state_every {
        if cycles == 0 {
            refusals.push(scope.refuse(&at("state_every"), "0 cycles", "at least 1"));
        }
        schedule.state_every = cycles;
    }
    (refusals.0.len() == count).then_some(schedule)
}

/// Without dropping, a limit on the lag must leave room for the groups that may be ahead.
pub(super) fn reachable(scope: &Scope, schedule: &Schedule, groups: u64, refusals: &mut Refusals) {
    let (ahead, reach) = (schedule.ahead(groups), schedule.reach(groups));
    let Some(limit) = schedule.max_lag.filter(|limit| !schedule.drop_beyond && *limit < reach) else {
        return;
    };
    let refusal = scope.refuse(
        &join(&key(scope), "max_lag"),
        format!("a largest lag of {limit}"),
        format!("at least {reach}: {ahead} groups may be ahead of a cycle of {groups}"),
    );
    refusals.push(refusal.action(
        "raise max_lag, lower lag, or set drop_beyond: true (rows beyond it are dropped and their groups replaced)",
    ));
}

/// Where the phase's schedule is written: its own, else the pipeline's.
fn key(scope: &Scope) -> String {
    let own = format!("phases.{}.schedule", scope.phase);
    if scope.pipeline.get(&own).is_some() { own } else { "schedule".to_owned() }
}
