//! The stages that come with the program, through the same door as anyone's.

use crate::registry::Registry;

pub(crate) fn add(registry: &mut Registry) {
    registry.add::<stage_dataset::Source>();
    registry.add::<stage_rollout::Rollout>();
    registry.add::<stage_reward::Reward>();
    registry.add::<stage_log_prob::LogProb>();
    registry.add::<stage_value::Values>();
    registry.add::<stage_kl_reward::KlReward>();
    registry.add::<stage_advantage::Advantage>();
    registry.add::<stage_policy_update::PolicyUpdate>();
    registry.add::<stage_value_update::ValueUpdate>();
    registry.add::<stage_sft::SupervisedUpdate>();
    registry.add::<stage_validation::Validation>();
    registry.add::<stage_archive::Archive>();
    registry.add::<stage_replay::Recording>();
    registry.add::<stage_replay::Replay>();
    registry.add::<stage_replay::Pace>();
}
