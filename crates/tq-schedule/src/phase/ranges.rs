//! Numbers that the plan is computed from, or that pipelines alone refer to. Stages check the settings they read.

use tq_config::{Range, Refusals, Value};

use crate::scope::Scope;

/// Most tokens of a prompt, and of a response.
const MOST_TOKENS: f64 = 16_777_216.0;

/// Most groups of a cycle.
const MOST_GROUPS: f64 = 1_048_576.0;

const RANGES: [(&str, Range); 5] = [
    ("data.max_prompt_length", Range::Within(1.0, MOST_TOKENS)),
    ("data.max_response_length", Range::Within(1.0, MOST_TOKENS)),
    ("data.train_batch_size", Range::Within(1.0, MOST_GROUPS)),
    ("actor_rollout_ref.rollout.val_kwargs.n", Range::AtLeast(1.0)),
    ("trainer.critic_warmup", Range::AtLeast(0.0)),
];

/// Refuses what is out of range. A value of another kind is refused where it is read.
pub(super) fn check(scope: &Scope, refusals: &mut Refusals) {
    for (key, range) in RANGES {
        let number = match scope.tree.get(key).map(|node| &node.value) {
            Some(Value::Int(whole)) => *whole as f64,
            Some(Value::Float(number)) => *number,
            _ => continue,
        };
        if let Err(refusal) = range.check(key, number) {
            refusals.push(scope.refuse_parameter(key, refusal.found, refusal.expected));
        }
    }
}
