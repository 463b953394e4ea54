//! Wrong pipelines are refused before anything starts, each with the sentence that helps.
#![allow(clippy::unwrap_used)]

mod common;

use common::{plan, plan_text};
use tq_schedule::plan::OnLost;
use transferqueue::client::Choice;

const RIGHT: &str = "\
partitions:
  prompts: {files: train.parquet}
  samples: {expand: prompts, n: \"${actor_rollout_ref.rollout.n}\", link: [prompt, ground_truth, data_source]}
models:
  policy: {use: causal-lm, path: model}
stages:
  rollout:   {use: rollout, model: policy@live}
  reward:    {use: reward}
  advantage: {use: advantage, per: group}
  actor:     {use: policy-update, model: policy}
schedule: on_policy
parameters:
  data: {train_batch_size: 64, max_prompt_length: 16, max_response_length: 32}
  algorithm: {adv_estimator: grpo, rollout_correction.bypass_mode: true}
  actor_rollout_ref: {rollout.n: 8, actor.ppo_mini_batch_size: 32}
";

/// What is said about `RIGHT` with one text replaced by another and with arguments.
fn refused(from: &str, to: &str, arguments: &[&str]) -> String {
    assert!(RIGHT.contains(from), "`{from}` is in the pipeline");
    let text = RIGHT.replacen(from, to, 1);
    plan_text(&text, "wrong.yaml", arguments).expect_err("should be refused").to_string()
}

fn added(line: &str, arguments: &[&str]) -> String {
    refused("schedule: on_policy\n", &format!("{line}\nschedule: on_policy\n"), arguments)
}

fn phases(until: &str) -> String {
    added(&format!("phases:\n  rl: {{until: {until}}}"), &[])
}

#[test]
fn a_stage_resumes_what_it_has_begun_where_it_can_and_the_pipeline_says_so() {
    let text = RIGHT.replacen("model: policy@live}", "model: policy@live, on_lost: resume}", 1);
    let plan = plan_text(&text, "right.yaml", &[]).unwrap();
    assert_eq!(plan.phases[0].tasks["rollout"].on_lost, OnLost::Resume);
    assert_eq!(plan.phases[0].tasks["reward"].on_lost, OnLost::Again);
    assert!(plan.describe().contains("row, resumed"), "{}", plan.describe());
}

#[test]
fn the_right_pipeline_is_not_refused() {
    let plan = plan_text(RIGHT, "right.yaml", &[]).unwrap();
    assert_eq!(plan.notes, []);
}

#[test]
fn ucx_is_refused_where_the_program_lacks_it_and_beside_encryption() {
    let store = |rest: &str| format!("schedule: on_policy\nstore: {{transport: ucx{rest}}}");
    let tls = ", listen: \"127.0.0.1:1\", tls: {cert: a.pem, key: a.key}";
    let said = refused("schedule: on_policy", &store(tls), &[]);
    assert!(said.contains("which encrypts nothing, beside `store.tls`"), "{said}");
    let lacks = "which this program was built without";
    assert_eq!(said.contains(lacks), !Choice::Ucx.is_built(), "{said}");
    let text = RIGHT.replacen("schedule: on_policy", &store(""), 1);
    match plan_text(&text, "right.yaml", &[]) {
        Ok(plan) => assert!(Choice::Ucx.is_built() && plan.store.transport == Choice::Ucx),
        Err(error) => assert!(!Choice::Ucx.is_built() && error.to_string().contains(lacks), "{error}"),
    }
}

macro_rules! wrong {
    ($($name:ident: $said:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), $said);
        })*
    };
}

// The ten that every user meets.
wrong! {
    unknown_stage: refused("use: reward", "use: rewrad", &[]);
    a_stage_that_resumes_nothing: refused("{use: reward}", "{use: reward, on_lost: resume}", &[]);
    misspelt_key: refused("per: group", "pre: group", &[]);
    type_clash: added("  penalty:   {use: length-penalty, bind: {length_penalty: token_level_rewards}, with: {weight: 1}}", &[]);
    missing_producer: refused("  reward:    {use: reward}\n", "", &[]);
    two_producers: added("  again:     {use: reward}", &[]);
    dead_column: added("  penalty:   {use: length-penalty, with: {weight: 0.1}}", &[]);
    no_rows_in_a_group: refused("", "", &["actor_rollout_ref.rollout.n=0"]);
    negative_lag: refused("schedule: on_policy", "schedule: {use: fully_async, lag: -0.5}", &[]);
    mini_batch_larger_than_the_cycle: refused("", "", &["actor_rollout_ref.actor.ppo_mini_batch_size=128"]);
    budget_below_one_cycle: refused("schedule: on_policy", "schedule: on_policy\nstore: {budget: 100KiB}", &[]);
}

// More of the same kinds.
wrong! {
    a_length_twice: phases("{steps: 5, epochs: 1}");
    two_levels: phases("{steps: 5, at_most: {actor/loss: 1}, at_least: {critic/score/mean: 0.5}}");
    a_misspelt_level: phases("{steps: 5, atmost: {actor/loss: 1}}");
    a_level_that_is_no_number: phases("{steps: 5, at_most: {actor/loss: low}}");
    misspelt_section: refused("schedule: on_policy", "shedule: on_policy", &[]);
    misspelt_schedule: refused("", "", &["schedule=on_polici"]);
    misspelt_schedule_field: refused("", "", &["schedule.lagg=1"]);
    misspelt_parameter: refused("train_batch_size: 64", "train_batchsize: 64", &[]);
    misspelt_override: refused("", "", &["rollout.n=4"]);
    misspelt_stage_in_an_override: refused("", "", &["stages.rewards.per=row"]);
    misspelt_reference: refused("${actor_rollout_ref.rollout.n}", "${actor_rollout_ref.rolout.n}", &[]);
    misspelt_model: refused("policy@live", "polici@live", &[]);
    misspelt_version: refused("policy@live", "policy@life", &[]);
    misspelt_port: added("  penalty:   {use: length-penalty, bind: {length_penalti: x}, with: {weight: 1}}", &[]);
    misspelt_source: refused("expand: prompts", "expand: promts", &[]);
    misspelt_link: refused("link: [prompt,", "link: [promt,", &[]);
    a_column_that_the_source_lacks: refused("use: reward}", "use: reward, bind: {ground_truth: solution}}", &[]);
    a_producer_that_is_switched_off: refused("  reward:    {use: reward}", "  reward:    {use: reward, when: need.filter}", &[]);
    a_stage_without_model: refused("use: rollout, model: policy@live", "use: rollout", &[]);
    a_model_of_the_wrong_kind: refused("use: causal-lm", "use: value-lm", &[]);
    a_trainer_of_given_weights: refused("use: policy-update, model: policy", "use: policy-update, model: policy@live", &[]);
    a_trainer_of_single_rows: refused("use: policy-update,", "use: policy-update, per: row,", &[]);
    nothing_that_trains: refused("  actor:     {use: policy-update, model: policy}\n", "", &[]);
    truncated_sampling_as_old_policy: refused("", "", &["actor_rollout_ref.rollout.top_p=0.9"]);
    a_mini_batch_that_does_not_divide_the_cycle: refused("", "", &["actor_rollout_ref.actor.ppo_mini_batch_size=24"]);
    a_budget_below_the_cycles_held: refused("schedule: on_policy", "schedule: {use: on_policy, state_every: 3}\nstore: {budget: 500KiB}", &[]);
    an_address_that_is_none: refused("schedule: on_policy", "schedule: on_policy\nstore: {listen: localhost}", &[]);
    an_open_address_without_encryption: refused("schedule: on_policy", "schedule: on_policy\nstore: {listen: \"0.0.0.0:7788\"}", &[]);
    a_certificate_without_an_address: refused("schedule: on_policy", "schedule: on_policy\nstore: {tls: {cert: a.pem, key: a.key}}", &[]);
    encryption_and_none: refused("schedule: on_policy", "schedule: on_policy\nstore: {listen: \"127.0.0.1:1\", insecure: true, tls: {cert: a.pem, key: a.key}}", &[]);
    a_largest_lag_that_cannot_be_kept: refused("schedule: on_policy", "schedule: {use: fully_async, lag: 1.25, max_lag: 1}", &[]);
    a_largest_lag_that_cannot_be_kept_in_admission_order: refused("", "", &["schedule={use:one_step_off,max_lag:0,drop_beyond:false}"]);
    dropping_without_max_lag: refused("", "", &["schedule.drop_beyond=true"]);
    processes: refused("schedule: on_policy", "schedule: on_policy\nworkers: {all: {stages: \"*\", kind: processes}}", &[]);
    a_stage_without_worker: refused("schedule: on_policy", "schedule: on_policy\nworkers: {some: {stages: [rollout, reward, actor]}}", &[]);
    two_partitions_to_choose_from: refused("models:", "  more: {expand: prompts}\nmodels:", &[]);
    a_chain_of_expansions: refused("models:", "  more: {expand: samples}\nmodels:", &[]);
    a_setting_of_a_stage: added("  penalty:   {use: length-penalty, with: {weight: heavy}}", &[]);
    a_circle_of_stages: added("  kl:        {use: kl-reward, bind: {token_level_scores: advantages, ref_log_probs: rollout_log_probs}}", &[]);
    a_partition_without_rows: refused("{files: train.parquet}", "{}", &[]);
    a_phase_after_none: refused("schedule: on_policy", "schedule: on_policy\nphases: {rl: {init: warmup}}", &[]);
    a_misspelt_stage_of_a_phase: plan("quickstart.yaml", &["phases.warmup.stages=[stf]"]).unwrap_err().to_string();
    a_parameter_of_a_misspelt_phase: plan("quickstart.yaml", &["phases.warmpu.parameters.data.seed=1"]).unwrap_err().to_string();
    a_state_after_no_cycle: refused("", "", &["schedule.state_every=0"]);
    oversampling_where_it_is_not_built_in: refused("", "", &["schedule.oversample=0.5"]);
    a_deleted_parameter: refused("", "", &["~data.train_batch_size"]);
    a_mini_batch_of_its_own_for_the_critic: plan("ppo.yaml", &["critic.ppo_mini_batch_size=100"]).unwrap_err().to_string();
    a_number_in_quotes: refused("", "", &["data.train_batch_size='64'"]);
    a_sweep_over_epochs_that_make_no_cycle: refused("", "", &["trainer.total_epochs=1", "data.train_batch_size=704"]);
}

// Numbers that would overflow, or that nobody can mean.
wrong! {
    ranks_of_a_stage_that_does_not_train: refused("{use: reward}", "{use: reward, ranks: 2}", &[]);
    no_ranks: refused("{use: policy-update, ", "{use: policy-update, ranks: 0, ", &[]);
    more_ranks_than_rows_of_a_mini_batch: refused("{use: policy-update, ", "{use: policy-update, ranks: 257, ", &[]);
    a_lag_beyond_all_numbers: refused("", "", &["schedule.lag=1e30"]);
    a_largest_lag_beyond_all_cycles: refused("schedule: on_policy", "schedule: {use: fully_async, max_lag: 9000000000000000000}", &[]);
    more_workers_than_threads: refused("schedule: on_policy", "schedule: on_policy\nworkers: {all: {stages: \"*\", count: 100000}}", &[]);
    no_workers: refused("schedule: on_policy", "schedule: on_policy\nworkers: {all: {stages: \"*\", count: 0}}", &[]);
    a_group_of_a_million_million_rows: refused("", "", &["actor_rollout_ref.rollout.n=1000000000000"]);
    a_cycle_of_a_million_million_groups: refused("", "", &["data.train_batch_size=1000000000000"]);
    a_cycle_of_no_groups: refused("", "", &["data.train_batch_size=0"]);
    a_prompt_of_a_million_million_tokens: refused("", "", &["data.max_prompt_length=1000000000000"]);
    responses_of_no_tokens: refused("", "", &["data.max_response_length=0"]);
    validation_of_no_rows: refused("", "", &["actor_rollout_ref.rollout.val_kwargs.n=0"]);
    a_warm_up_of_the_critic_before_the_start: refused("", "", &["trainer.critic_warmup=-1"]);
    more_steps_than_can_be_counted: refused("", "", &["trainer.total_training_steps=9000000000000000000"]);
    more_epochs_than_can_be_counted: refused("", "", &["trainer.total_epochs=9000000000000000000"]);
    more_steps_of_a_phase_than_can_be_counted: phases("{steps: 9000000000000000000}");
    attempts_without_end: refused("use: reward}", "use: reward, attempts: 9000000000000000000}", &[]);
    a_device_that_nobody_knows: refused("", "", &["trainer.device=gpu"]);
    a_device_of_a_group_that_nobody_knows: refused("schedule: on_policy", "schedule: on_policy\nworkers: {all: {stages: \"*\", device: \"cuda:x\"}}", &[]);
}

#[test]
fn the_largest_numbers_that_are_allowed_overflow_nothing() {
    let largest = [
        "schedule={use:fully_async,lag:1000,max_lag:1000000,state_every:9000000000000000000}",
        "data.train_batch_size=1048576",
        "actor_rollout_ref.rollout.n=65536",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1048576",
        "data.max_prompt_length=16777216",
        "data.max_response_length=16777216",
        "trainer.total_training_steps=1000000000",
    ];
    let plan = plan_text(RIGHT, "right.yaml", &largest).unwrap();
    let arithmetic = &plan.phases[0].arithmetic;
    assert_eq!(arithmetic.groups_ahead, 1_048_576_000);
    assert_eq!(arithmetic.rows_per_cycle, 68_719_476_736);
    assert!(plan.describe().contains("1000000000"));
}

#[test]
fn of_very_many_slips_the_first_are_said_and_the_rest_are_counted() {
    let slips: String = (0..20_000).map(|n| format!("  data.slip{n}: 1\n")).collect();
    let text = RIGHT.replace("parameters:\n", &format!("parameters:\n{slips}"));
    let error = plan_text(&text, "wrong.yaml", &[]).unwrap_err();
    assert_eq!(error.0.len(), 20_000);
    assert!(error.to_string().ends_with("… and 19900 more; mend these first"));
}

#[test]
fn everything_wrong_is_said_at_once_and_each_thing_once() {
    let text = RIGHT
        .replace("per: group", "pre: group")
        .replace("use: reward", "use: rewrad")
        .replace("policy@live", "polici@live");
    let error = plan_text(&text, "wrong.yaml", &["data.sed=1", "schedule.lag=-1"]).unwrap_err();
    let lines: Vec<_> = error.iter().filter_map(|r| r.at.as_ref().and_then(|at| at.line())).collect();
    assert!(lines.contains(&9), "the misspelt key: {error}");
    assert!(error.to_string().contains("data.sed"), "{error}");
    assert!(error.to_string().contains("a lag of -1"), "{error}");
    let mut said: Vec<_> = error.iter().map(ToString::to_string).collect();
    let all = said.len();
    said.sort();
    said.dedup();
    assert_eq!(said.len(), all, "{error}");
}

#[test]
fn a_file_that_is_wrong_under_every_phase_is_refused_once() {
    let error = plan("quickstart.yaml", &["actor_rollout_ref.rollout.n=0"]).unwrap_err();
    assert_eq!(error.0.len(), 1, "{error}");
}

#[test]
fn disjoint_where_lets_several_stages_write_a_column() {
    let text = RIGHT
        .replace("reward:    {use: reward}", "reward:    {use: reward, where: {source: math}}")
        .replace("schedule:", "  other:     {use: reward, where: {source: code}}\nschedule:");
    let plan = plan_text(&text, "right.yaml", &[]).unwrap();
    let column = &plan.phases[0].partitions["samples"].columns["token_level_scores"];
    assert_eq!(column.origin, tq_schedule::plan::ColumnOrigin::Written(vec!["reward".into(), "other".into()]));
}

#[test]
fn what_an_archive_cannot_hold_is_refused() {
    let keep = |keep: &str, stage: &str| {
        let samples = "link: [prompt, ground_truth, data_source]";
        let text = RIGHT.replacen(samples, &format!("{samples}, keep: {keep}"), 1);
        let text = text.replacen("schedule: on_policy\n", &format!("{stage}\nschedule: on_policy\n"), 1);
        plan_text(&text, "wrong.yaml", &[]).map(|_| ()).map_err(|refusals| refusals.to_string())
    };
    assert_eq!(keep("archive", ""), Ok(()));
    let some = "  penalty:   {use: length-penalty, with: {weight: 1}, where: {kind: math}}";
    let said = keep("archive", some).unwrap_err();
    assert!(said.contains("`length_penalty`, which stage `penalty` writes only `where` tags match"), "{said}");
    let named = "  penalty:   {use: length-penalty, with: {weight: 1}, bind: {length_penalty: version}}";
    let said = keep("archive", named).unwrap_err();
    assert!(said.contains("the column `version`, and an archive has one of that name"), "{said}");
    assert_eq!(keep("{responses: archive, version: rows}", named), Ok(()));
    let said = keep("{respones: archive}", "").unwrap_err();
    assert!(said.contains("did you mean `responses`?"), "{said}");
    let said = keep("everything", "").unwrap_err();
    assert!(said.contains("the word `archive` for all of them"), "{said}");
    let prompts = plan_text(&RIGHT.replacen("train.parquet}", "train.parquet, keep: archive}", 1), "wrong.yaml", &[]);
    let said = prompts.unwrap_err().to_string();
    assert!(said.contains("partitions.prompts.keep: found `archive` on a partition that is not expanded"), "{said}");
    let taken = keep("archive", "  archive:   {use: reward}").unwrap_err();
    assert!(taken.contains("stages.archive: found a name the planner uses for a stage it adds"), "{taken}");
}

#[test]
fn a_stage_that_writes_trains_or_takes_batches_draws_no_row_again() {
    let said = |from: &str, to: &str| {
        plan_text(&RIGHT.replacen(from, to, 1), "wrong.yaml", &[]).map(|_| ()).unwrap_err().to_string()
    };
    let writes = said("{use: reward}", "{use: reward, reuse: 2}");
    assert!(
        writes.contains("stages.reward.reuse: found `reuse: 2` of a stage that writes `token_level_scores`"),
        "{writes}"
    );
    let trains = said("{use: policy-update, ", "{use: policy-update, reuse: 2, ");
    assert!(trains.contains("`ppo_epochs` repeats"), "{trains}");
    let external = |more: &str| {
        let stage =
            format!("  exporter:  {{use: external, with: {{columns: [responses]}}, {more}}}\nschedule: on_policy\n");
        plan_text(&RIGHT.replacen("schedule: on_policy\n", &stage, 1), "wrong.yaml", &[]).map(|_| ())
    };
    let external = |more: &str| external(more).map_err(|refusals| refusals.to_string());
    assert_eq!(external("reuse: 3"), Ok(()));
    let batches = external("reuse: 3, per: mini").unwrap_err();
    assert!(batches.contains("found `reuse: 3` with `per: mini`; expected `per: row` or `per: group`"), "{batches}");
    let never = external("reuse: 0").unwrap_err();
    assert!(never.contains("found 0 uses; expected from 1 to 1000000"), "{never}");
}

#[test]
fn what_an_external_reader_cannot_read_is_refused() {
    let exporter = |with: &str| {
        let stage = format!("  exporter:  {{use: external, with: {with}}}\nschedule: on_policy\n");
        let text = RIGHT.replacen("schedule: on_policy\n", &stage, 1);
        plan_text(&text, "wrong.yaml", &[]).map(|_| ()).map_err(|refusals| refusals.to_string())
    };
    assert_eq!(exporter("{columns: [responses]}"), Ok(()));
    for (with, part) in [
        ("{columns: []}", "stages.exporter.with: found no columns; expected `{columns: [NAME, …]}`"),
        ("{}", "found no columns"),
        ("{colums: [responses]}", "unknown field `colums`"),
        ("{columns: [respones]}", "did you mean `responses`?"),
        ("{columns: [responses, responses]}", "found `responses` twice"),
    ] {
        let said = exporter(with).unwrap_err();
        assert!(said.contains(part), "{with}: {said}");
    }
    let stage = "  exporter:  {use: external, with: {columns: [responses]}, attempts: 5}\nschedule: on_policy\n";
    let text = RIGHT.replacen("schedule: on_policy\n", stage, 1);
    let said = plan_text(&text, "wrong.yaml", &[]).unwrap_err().to_string();
    assert!(said.contains("stages.exporter.attempts: found `attempts`; expected a stage of the run"), "{said}");
    let store = |store: &str| {
        let text = RIGHT.replacen("schedule: on_policy\n", &format!("store: {store}\nschedule: on_policy\n"), 1);
        plan_text(&text, "wrong.yaml", &[]).unwrap_err().to_string()
    };
    assert!(store("{spill: true}").contains("store.spill: found a folder for spilled cells, and no budget"));
    assert!(store("{patience: 0}").contains("store.patience: found 0 seconds; expected from 1 to 86400"));
    assert!(store("{spill: 7}").contains("store.spill"));
}
