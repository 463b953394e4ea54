//! The repository's pipelines, planned under several schedules and parameters.
#![allow(clippy::unwrap_used)]

mod common;

use common::{plan, plan_text};
use tq_schedule::plan::{ColumnOrigin, Keep, Level, Rows, Side, Spill, Version};
use tq_schedule::port::Per;
use tq_schedule::{Plan, Planner};

/// The facts of one phase as `--dry-run` prints them, without its tables.
fn facts(plan: &Plan, phase: &str) -> String {
    let text = plan.describe();
    let start = text.find(&format!("phase {phase}")).unwrap();
    let end = start + text[start..].find("  partition ").unwrap();
    text[start..end].to_owned()
}

#[test]
fn dry_run_of_the_quick_start_on_policy() {
    insta::assert_snapshot!(plan("quickstart.yaml", &[]).unwrap().describe());
}

#[test]
fn dry_run_of_the_quick_start_one_step_off() {
    let plan = plan("quickstart.yaml", &["schedule=one_step_off"]).unwrap();
    insta::assert_snapshot!(facts(&plan, "rl"));
    assert_eq!(plan.phase("warmup").unwrap().schedule.lag, 0.0, "the warm-up keeps its own schedule");
}

#[test]
fn dry_run_of_the_quick_start_fully_async() {
    let arguments = ["schedule={use:fully_async,lag:0.5,max_lag:1}"];
    insta::assert_snapshot!(facts(&plan("quickstart.yaml", &arguments).unwrap(), "rl"));
}

#[test]
fn dry_run_of_ppo() {
    insta::assert_snapshot!(plan("ppo.yaml", &[]).unwrap().describe());
}

#[test]
fn a_plan_survives_its_file() {
    for name in ["quickstart.yaml", "ppo.yaml", "grpo.yaml"] {
        let plan = plan(name, &["schedule=fully_async", "schedule.lag=0.25", "data.image_key=x"]).unwrap();
        let text = plan.to_yaml().unwrap();
        assert_eq!(Plan::from_yaml(&text).unwrap(), plan, "{name}");
    }
}

#[test]
fn the_quick_start_is_short() {
    assert!(common::pipeline("quickstart.yaml").lines().count() <= 30);
}

#[test]
fn a_field_is_set_on_top_of_a_named_schedule() {
    let plan = plan("grpo.yaml", &["schedule=fully_async", "schedule.lag=0", "schedule.grain=cycle"]).unwrap();
    let phase = &plan.phases[0];
    assert_eq!(phase.arithmetic.window, phase.arithmetic.groups_per_cycle);
    assert!(phase.promises.repeatable);
    assert_eq!(phase.promises.lag.largest, Some(0));
}

#[test]
fn max_lag_waits_unless_told_to_drop() {
    let phase = |arguments: &[&str]| {
        let schedule = ["schedule=fully_async", "schedule.max_lag=1"];
        plan("grpo.yaml", &[&schedule, arguments].concat()).unwrap().phases.remove(0)
    };
    let waits = phase(&["schedule.lag=1.0"]);
    assert!(!waits.schedule.drop_beyond);
    assert_eq!(waits.promises.lag.largest, Some(1));
    assert!(waits.promises.lag.why.contains("nothing is dropped"));
    let drops = phase(&["schedule.lag=1.5", "schedule.drop_beyond=true"]);
    assert_eq!(drops.promises.lag.largest, Some(1));
    assert!(drops.promises.lag.why.contains("rows beyond max_lag are dropped"));
}

#[test]
fn the_limit_on_the_lag_is_held_against_the_groups_ahead_not_against_lag_itself() {
    // 1.001 cycles ahead of a cycle of 64 is 64 groups: one version.
    let arguments = [
        "data.train_batch_size=64",
        "actor_rollout_ref.actor.ppo_mini_batch_size=64",
        "schedule={use:fully_async,lag:1.001,max_lag:1}",
    ];
    let phase = plan("grpo.yaml", &arguments).unwrap().phases.remove(0);
    assert_eq!(phase.arithmetic.groups_ahead, 64);
    assert_eq!(phase.promises.lag.largest, Some(1));
}

#[test]
fn arithmetic_of_groups_minis_and_epochs() {
    let arguments = [
        "data.train_batch_size=64",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.ppo_epochs=3",
        "schedule=one_step_off",
        "schedule.state_every=2",
    ];
    let a = plan("grpo.yaml", &arguments).unwrap().phases.remove(0).arithmetic;
    assert_eq!((a.groups_per_cycle, a.rows_per_cycle, a.mini_batches_per_cycle), (64, 512, 4));
    assert_eq!(a.updates_per_publication["actor"], 12, "four mini-batches, three passes each");
    assert_eq!((a.groups_ahead, a.window), (64, 128));
    assert_eq!(a.max_tokens_per_cycle, 512 * 1024);
    // responses 512 × 8 bytes, three float columns 512 × 4, eight rows; prompt, ground truth and source once.
    assert_eq!(a.bytes_per_group, 8 * (512 * 8 + 3 * 512 * 4) + 512 * 8 + 256 + 64);
    assert_eq!(a.bytes_reserved_least, 2 * 64 * a.bytes_per_group);
    assert_eq!(a.bytes_at_peak, (128 + 64) * a.bytes_per_group);
    assert_eq!(a.total_cycles, Some(30 * 650 / 64), "cycles may span an epoch's end");
}

#[test]
fn a_length_in_epochs_is_unknown_until_rows_are_counted() {
    let text = common::pipeline("grpo.yaml");
    let plan = Planner::new(&common::Builtin).plan_text(&text, "x.yaml", &[]).unwrap();
    assert_eq!(plan.phases[0].arithmetic.total_cycles, None);
    assert!(plan.describe().contains("not known yet"));
}

#[test]
fn old_log_probs_are_recomputed_when_the_rollouts_cannot_serve() {
    let grpo = |arguments: &[&str]| plan("grpo.yaml", arguments).unwrap().phases.remove(0);
    let one_update = ["data.train_batch_size=256"];
    let phase = grpo(&one_update);
    assert!(!phase.needs.old, "one update of fresh samples: the ratio is 1");
    assert_eq!(phase.tasks["actor"].reads["old_log_probs"], "rollout_log_probs");
    assert!(phase.tasks["rollout"].writes.contains_key("rollout_log_probs"), "written because it is read");
    let phase = grpo(&["data.train_batch_size=256", "schedule=one_step_off"]);
    assert!(phase.needs.old, "samples are a version behind");
    let phase = grpo(&[]);
    assert!(phase.needs.old, "four updates per publication");
    assert_eq!(phase.tasks["actor"].reads["old_log_probs"], "old_log_probs");
    assert!(!phase.tasks["rollout"].writes.contains_key("rollout_log_probs"), "nobody reads it");
    let phase = grpo(&["algorithm.rollout_correction.bypass_mode=true"]);
    assert!(!phase.needs.old);
    assert!(!phase.tasks.contains_key("old"));
}

#[test]
fn critic_and_reference_follow_the_algorithm() {
    let phase = plan("ppo.yaml", &["algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=false"])
        .unwrap()
        .phases
        .remove(0);
    for off in ["values", "critic", "reference", "kl"] {
        assert!(!phase.tasks.contains_key(off), "{off}");
    }
    assert_eq!(phase.tasks["advantage"].reads["token_level_rewards"], "token_level_scores");
    let phase = plan("grpo.yaml", &["actor_rollout_ref.actor.use_kl_loss=true"]).unwrap().phases.remove(0);
    assert_eq!(phase.tasks["actor"].reads["ref_log_probs"], "ref_log_probs");
    assert_eq!(phase.tasks["reference"].model.as_ref().unwrap().version, Some(Version::Initial));
    let error = plan("grpo.yaml", &["algorithm.adv_estimator=gae"]).unwrap_err();
    assert!(error.to_string().contains("no column `values`"), "{error}");
}

#[test]
fn a_model_that_nobody_uses_is_noted_and_not_loaded() {
    let plan = plan("ppo.yaml", &["algorithm.adv_estimator=grpo"]).unwrap();
    assert!(!plan.models.contains_key("critic"));
    assert!(plan.notes.iter().any(|n| n.key == "models.critic"), "{:?}", plan.notes);
}

#[test]
fn tasks_are_named_after_stages_and_the_partitions_they_share() {
    let plan = plan("quickstart.yaml", &["algorithm.rollout_correction.bypass_mode=false"]).unwrap();
    let names: Vec<_> = plan.phase("rl").unwrap().tasks.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "dataset.prompts",
            "dataset.val-prompts",
            "rollout.samples",
            "rollout.val",
            "reward.samples",
            "reward.val",
            "old",
            "advantage",
            "actor",
            "validation"
        ]
    );
    let rollout: Vec<_> = plan.phase("rl").unwrap().tasks_of("rollout").map(|(n, t)| (n, t.priority)).collect();
    assert_eq!(rollout, [("rollout.samples", 0), ("rollout.val", 1)]);
    assert_eq!(plan.phase("rl").unwrap().training_partition().unwrap().0, "samples");
    assert_eq!(plan.phase("warmup").unwrap().training_partition().unwrap().0, "warmup");
}

#[test]
fn a_partition_that_is_never_evaluated_is_left_out_and_noted() {
    let plan = plan("grpo.yaml", &["trainer.test_freq=-1"]).unwrap();
    assert!(!plan.phases[0].partitions.contains_key("val"));
    assert!(!plan.phases[0].tasks.contains_key("validation"));
    assert_eq!(plan.phases[0].tasks["rollout"].partition, "samples");
    assert_eq!(plan.notes.iter().filter(|n| n.key == "partitions.val").count(), 1);
}

#[test]
fn parameters_of_a_phase_beat_the_command_line_and_can_be_overridden_themselves() {
    let groups = |arguments: &[&str], phase: &str| {
        plan("quickstart.yaml", arguments).unwrap().phase(phase).unwrap().arithmetic.groups_per_cycle
    };
    assert_eq!(groups(&["data.train_batch_size=32"], "rl"), 32);
    assert_eq!(groups(&["data.train_batch_size=32"], "warmup"), 128);
    assert_eq!(groups(&["phases.warmup.parameters.data.train_batch_size=16"], "warmup"), 16);
    let steps = |arguments: &[&str]| plan("quickstart.yaml", arguments).unwrap().phases[0].arithmetic.total_cycles;
    assert_eq!(steps(&["phases.warmup.until.steps=7"]), Some(7));
    let plan = plan("quickstart.yaml", &["actor_rollout_ref.actor.optim.lr=0"]).unwrap();
    let lr = |phase: &str| plan.phase(phase).unwrap().parameter("actor_rollout_ref.actor.optim.lr").unwrap().as_f64();
    assert_eq!((lr("warmup"), lr("rl")), (Some(1e-3), Some(0.0)), "the control without learning keeps its warm-up");
}

#[test]
fn a_level_ends_a_phase_that_has_one_trainer() {
    let level = |arguments: &[&str]| plan("quickstart.yaml", arguments).unwrap().phases[0].arithmetic.level.clone();
    let expected = Level { metric: "train/loss".into(), side: Side::AtMost, value: 0.28 };
    assert_eq!(level(&[]), Some(expected.clone()));
    assert!(expected.is_reached(0.28) && !expected.is_reached(0.29) && !expected.is_reached(f64::NAN));
    let higher = level(&["phases.warmup.until={steps: 3, at_least: {train/grad_norm: 2}}"]).unwrap();
    assert!(higher.is_reached(2.0) && !higher.is_reached(1.9));
    let two = plan("ppo.yaml", &["+phases={rl: {until: {steps: 3, at_most: {actor/loss: 0}}}}"]).unwrap_err();
    assert!(two.to_string().contains("one training task"), "{two}");
}

#[test]
fn noted_keys_are_in_the_plan_with_their_reason() {
    let plan =
        plan("grpo.yaml", &["trainer.test_freq=5", "actor_rollout_ref.rollout.gpu_memory_utilization=0.4"]).unwrap();
    assert_eq!(plan.notes.len(), 1);
    assert_eq!(plan.notes[0].at, "argument `actor_rollout_ref.rollout.gpu_memory_utilization=0.4`");
    assert!(plan.describe().contains("the cache is sized by max_num_seqs"));
}

#[test]
fn kept_columns_need_no_reader_and_archived_ones_get_one() {
    let arguments = ["+partitions.samples.keep={responses:archive,rollout_log_probs:rows}"];
    let phase = plan("grpo.yaml", &arguments).unwrap().phases.remove(0);
    let columns = &phase.partitions["samples"].columns;
    assert_eq!(columns["responses"].keep, Some(Keep::Archive));
    assert_eq!(columns["responses"].readers.last().unwrap(), "archive");
    assert_eq!(columns["rollout_log_probs"].keep, Some(Keep::Rows), "an optional output is written to be kept");
    assert!(columns["rollout_log_probs"].readers.is_empty());
    let task = &phase.tasks["archive"];
    assert_eq!((task.implementation.as_str(), task.per), ("archive", Per::Mini));
    assert_eq!(task.reads.keys().collect::<Vec<_>>(), ["responses"]);
    assert!(task.training.is_none() && task.writes.is_empty());
}

#[test]
fn the_word_archive_takes_every_column_that_is_there_linked_ones_too() {
    let whole = plan("grpo.yaml", &["+partitions.samples.keep=archive"]).unwrap().phases.remove(0);
    let mut archived: Vec<&str> = whole.tasks["archive"].reads.keys().map(String::as_str).collect();
    archived.sort_unstable();
    let mut there: Vec<&str> = whole.partitions["samples"].columns.keys().map(String::as_str).collect();
    there.sort_unstable();
    assert_eq!(archived, there);
    for linked in ["prompt", "ground_truth", "data_source"] {
        assert!(archived.contains(&linked), "{archived:?}");
    }
    let without = plan("grpo.yaml", &[]).unwrap().phases.remove(0);
    assert!(
        without.partitions["samples"].columns.keys().eq(whole.partitions["samples"].columns.keys()),
        "nothing is written for the archive alone"
    );
    assert!(without.tasks.get("archive").is_none());
}

#[test]
fn a_column_that_is_written_only_when_read_is_written_to_be_archived() {
    let columns = |arguments: &[&str]| {
        plan("grpo.yaml", arguments).unwrap().phases.remove(0).partitions["samples"].columns.clone()
    };
    assert!(!columns(&[]).contains_key("returns"));
    assert_eq!(columns(&["+partitions.samples.keep={returns: archive}"])["returns"].readers, ["archive"]);
}

#[test]
fn each_archived_partition_has_its_task() {
    let arguments = ["+partitions.samples.keep=archive", "+partitions.val.keep=archive", "trainer.test_freq=5"];
    let phase = plan("grpo.yaml", &arguments).unwrap().phases.remove(0);
    assert_eq!(phase.tasks["archive.samples"].partition, "samples");
    assert_eq!(phase.tasks["archive.val"].partition, "val");
}

#[test]
fn clients_can_put_the_prompts() {
    let text = "\
partitions:
  inbox: {columns: {prompt: ragged i64, ground_truth: {type: utf8, max: 100}}}
  samples: {expand: inbox, link: [prompt, ground_truth]}
models: {policy: {use: causal-lm, path: model}}
stages: {sft: {use: sft, model: policy}}
parameters: {trainer.total_training_steps: 3}
";
    let plan = plan_text(text, "put.yaml", &[]).unwrap();
    let inbox = &plan.phases[0].partitions["inbox"];
    assert_eq!(inbox.rows, Rows::Put);
    assert_eq!(inbox.columns["prompt"].origin, ColumnOrigin::Put);
    assert_eq!(inbox.columns["prompt"].max_bytes_per_row, (512 + 512) * 8, "without `max`, a whole sequence");
    assert_eq!(inbox.columns["ground_truth"].max_bytes_per_row, 100);
    assert_eq!(inbox.columns["ground_truth"].linked_into, ["samples"]);
    assert!(!plan.phases[0].tasks.contains_key("dataset"));
}

#[test]
fn a_stage_of_ones_own_adds_a_column() {
    let text = common::pipeline("grpo.yaml").replace(
        "  advantage: {use: advantage, per: group}",
        "  penalty:   {use: length-penalty, with: {weight: 0.1}}\n  advantage: {use: advantage, per: group}",
    );
    let error = plan_text(&text, "x.yaml", &["trainer.test_freq=5"]).unwrap_err();
    assert!(error.to_string().contains("keep: [length_penalty]"), "{error}");
    let plan = plan_text(&text, "x.yaml", &["partitions.samples.keep=[length_penalty]"]).unwrap();
    let task = &plan.phases[0].tasks["penalty"];
    assert_eq!((task.per, task.with["weight"].as_f64()), (Per::Row, Some(0.1)));
}

#[test]
fn a_parameter_that_the_pipeline_does_not_take_up_is_noted() {
    let noted = |name: &str, arguments: &[&str]| {
        let plan = plan(name, arguments).unwrap();
        let keys = plan.notes.into_iter().map(|note| note.key);
        keys.filter(|key| !key.starts_with("partitions") && !key.starts_with("models")).collect::<Vec<_>>()
    };
    let warmup = ["trainer.critic_warmup=2"];
    assert_eq!(noted("quickstart.yaml", &warmup), ["trainer.critic_warmup"]);
    assert!(noted("ppo.yaml", &warmup).is_empty());
    let unused = ["critic.enable=true", "critic.model.path=elsewhere"];
    assert_eq!(noted("quickstart.yaml", &unused), ["critic.model.path", "critic.enable"]);
    assert!(noted("quickstart.yaml", &[]).is_empty());
}

#[test]
fn a_switch_that_no_stage_follows_is_refused() {
    for key in ["algorithm.use_kl_in_reward", "algorithm.filter_groups.enable"] {
        let argument = format!("{key}=true");
        let refused = plan("quickstart.yaml", &[&argument]).unwrap_err().to_string();
        assert!(refused.contains(key) && refused.contains("no stage of this pipeline follows it"), "{refused}");
    }
    plan("grpo.yaml", &["algorithm.use_kl_in_reward=true", "data.train_batch_size=256"]).unwrap();
}

#[test]
fn workers_that_name_no_device_have_the_trainers() {
    let device = |arguments: &[&str]| plan("grpo.yaml", arguments).unwrap().workers["all"].device.clone();
    assert_eq!(device(&[]), "cpu");
    assert_eq!(device(&["trainer.device=cuda"]), "cuda");
    assert_eq!(device(&["trainer.device=cuda", "+workers.all.device=cpu"]), "cpu");
}

#[test]
fn ranks_are_in_the_plan_with_what_sizes_their_shares() {
    let plan = plan("quickstart.yaml", &["stages.actor.ranks=2"]).unwrap();
    let training = plan.phase("rl").unwrap().tasks["actor"].training.clone().unwrap();
    assert_eq!((training.ranks, training.lengths), (2, vec!["prompt".to_owned(), "responses".to_owned()]));
    assert!(plan.describe().contains("trains policy, 2 ranks"), "{}", plan.describe());
    let alone = common::plan("quickstart.yaml", &[]).unwrap();
    assert_eq!(alone.phase("rl").unwrap().tasks["actor"].training.as_ref().unwrap().ranks, 1);
    assert!(!alone.describe().contains("ranks"));
}

const EXPORTER: &str = "+stages.exporter={use: external, with: {columns: [responses, returns]}, per: group}";

#[test]
fn an_external_reader_needs_no_worker_and_its_columns_are_written_for_it() {
    let plan = plan("grpo.yaml", &[EXPORTER]).unwrap();
    let phase = &plan.phases[0];
    let task = &phase.tasks["exporter"];
    assert!(task.external && task.writes.is_empty());
    assert_eq!((task.per, task.partition.as_str()), (Per::Group, "samples"));
    assert_eq!(task.reads.keys().collect::<Vec<_>>(), ["responses", "returns"]);
    assert_eq!(phase.partitions["samples"].columns["returns"].readers, ["exporter"]);
    assert!(plan.workers.values().all(|group| !group.stages.contains(&"exporter".to_owned())), "{:?}", plan.workers);
    assert!(phase.tasks.values().filter(|task| task.external).count() == 1);
    assert_eq!(task.reuse, 1);
}

#[test]
fn a_reader_may_draw_every_row_several_times_and_the_plan_says_so() {
    let exporter = EXPORTER.replace("per: group", "per: row, reuse: 4");
    let plan = plan("grpo.yaml", &[&exporter]).unwrap();
    assert_eq!(plan.phases[0].tasks["exporter"].reuse, 4);
    assert!(plan.describe().contains("row, 4 times"), "{}", plan.describe());
}

#[test]
fn spilling_goes_beside_the_run_or_to_a_folder() {
    let store = |text: &str| plan("grpo.yaml", &[EXPORTER, text]).unwrap().store;
    let spill = |text: &str| store(&format!("+store={{budget: 1GiB, {text}}}")).spill;
    assert_eq!(spill("spill: true"), Some(Spill::Run(true)));
    assert_eq!(spill("spill: /fast/spill"), Some(Spill::Folder("/fast/spill".into())));
    assert_eq!((spill("spill: false"), spill("patience: 5")), (None, None));
    assert_eq!(store("+store={patience: 5}").patience, 5);
    assert_eq!(store("+store={budget: 1GiB}").patience, 60);
}
