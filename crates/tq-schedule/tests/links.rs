//! The pipeline of the design, which leaves columns and folders to be filled in.
#![allow(clippy::unwrap_used)]

mod common;

use common::plan_text;
use tq_schedule::plan::{ColumnOrigin, Rows};
use tq_schedule::{Planner, Refusals};

/// The pipeline of the design, word for word.
const DESIGN: &str = r#"
partitions:
  prompts: {files: "${data.train_files}"}
  samples: {expand: prompts, n: "${actor_rollout_ref.rollout.n}", link: [prompt, ground_truth]}
  val:     {expand: {files: "${data.val_files}"}, n: "${actor_rollout_ref.rollout.val_kwargs.n}", every: "${trainer.test_freq}", link: [prompt, ground_truth]}
models:
  policy: {use: causal-lm, path: "${actor_rollout_ref.model.path}"}
stages:
  rollout:   {use: rollout, model: policy@live, serve: [samples, val]}
  reward:    {use: reward, serve: [samples, val]}
  old:       {use: log-prob, model: policy@cycle, bind: {log_probs: old_log_probs}, when: need.old}
  reference: {use: log-prob, model: policy@0, bind: {log_probs: ref_log_probs}, when: need.reference}
  advantage: {use: advantage, per: group}
  actor:     {use: policy-update, model: policy, per: mini}
schedule: on_policy            # | one_step_off | fully_async | {use: fully_async, lag: 0.5, on_publication: continue}
workers: {all: {stages: "*"}}  # groups of workers: stages × count × device × processes or threads
"#;

#[test]
fn the_pipeline_of_the_design_plans_as_it_is() {
    let arguments = ["algorithm.adv_estimator=grpo", "trainer.test_freq=5"];
    let plan = plan_text(DESIGN, "grpo.yaml", &arguments).unwrap();
    let phase = &plan.phases[0];
    let column = |partition: &str| &phase.partitions[partition].columns["data_source"];
    assert_eq!(column("samples").origin, ColumnOrigin::Linked("prompts".into()));
    assert_eq!(column("samples").readers, ["reward.samples"]);
    assert_eq!(column("val").readers, ["reward.val", "validation"]);
    assert_eq!(column("prompts").linked_into, ["samples"]);
    let notes: Vec<_> = plan.notes.iter().map(|n| format!("{}: {} ({})", n.key, n.reason, n.at)).collect();
    assert_eq!(
        notes,
        [
            "partitions.samples.link: column `data_source` of `prompts` is linked by itself, for `reward.samples` \
             (grpo.yaml:4:67)",
            "partitions.val.link: column `data_source` of `val-prompts` is linked by itself, for `reward.val` and \
             `validation` (grpo.yaml:5:130)",
        ]
    );
    assert!(plan.describe().contains(&notes[0]), "{}", plan.describe());
}

#[test]
fn only_what_is_required_is_linked_by_itself() {
    let text = DESIGN.replace(", link: [prompt, ground_truth]}", "}");
    let arguments = ["algorithm.adv_estimator=grpo"];
    let linked = |text: &str| {
        let plan = plan_text(text, "x.yaml", &arguments)?;
        let columns = &plan.phases[0].partitions["samples"].columns;
        let linked = columns.iter().filter(|(_, c)| matches!(c.origin, ColumnOrigin::Linked(_)));
        Ok::<_, Refusals>(linked.map(|(name, _)| name.clone()).collect::<Vec<_>>())
    };
    // The source has `extra_info` too, but reward can do without it.
    let required = ["prompt", "ground_truth", "data_source"];
    assert_eq!(linked(&text).unwrap(), required);
    // An input that the pipeline binds is wanted.
    let bound = |inputs: &str| {
        let reward = "reward:    {use: reward, serve: [samples, val]";
        text.replace(reward, &format!("{reward}, bind: {{{inputs}}}"))
    };
    let wanted = linked(&bound("extra_info: extra_info")).unwrap();
    assert_eq!(wanted, [&required[..], &["extra_info"]].concat());
    // A stage that is off would write the column: the source's is not taken in its place.
    let graded = bound("data_source: grade");
    assert_eq!(linked(&graded).unwrap(), ["prompt", "ground_truth", "grade"]);
    let off = graded.replace("stages:\n", "stages:\n  grade: {use: grade, when: false}\n");
    let error = linked(&off).unwrap_err().to_string();
    assert!(error.contains("stage `grade` would write it, but is off"), "{error}");
}

#[test]
fn a_column_that_a_stage_adds_to_the_source_can_be_linked_under_its_bound_name() {
    let text = common::pipeline("grpo.yaml").replace(", data_source]", "]").replace(
        "  advantage: {use: advantage, per: group}",
        "  grade:     {use: grade, serve: [prompts], bind: {grade: level}}\n  advantage: {use: advantage, per: group}",
    );
    let bound = text
        .replace("{use: reward, serve: [samples, val]}", "{use: reward, serve: [samples], bind: {data_source: level}}");
    let plan = plan_text(&bound, "x.yaml", &[]).unwrap();
    let level = &plan.phases[0].partitions["samples"].columns["level"];
    assert_eq!(level.origin, ColumnOrigin::Linked("prompts".into()));
    assert_eq!(level.readers, ["reward"]);
    let written = &plan.phases[0].partitions["prompts"].columns["level"];
    assert_eq!(written.origin, ColumnOrigin::Written(vec!["grade".into()]));
    let note = plan.notes.iter().find(|n| n.key == "partitions.samples.link");
    assert!(note.unwrap().reason.contains("`level` of `prompts`"));
}

#[test]
fn paths_below_the_home_folder_are_written_out() {
    let text = DESIGN.replace("{files: \"${data.train_files}\"}", "{files: [~/a.parquet, b.parquet]}");
    let overrides = common::overrides(&["algorithm.adv_estimator=grpo"]);
    let planner = |home| Planner::new(&common::Builtin).rows(&common::count).home(home);
    let plan = planner(Some("/home/ada")).plan_text(&text, "x.yaml", &overrides).unwrap();
    let Rows::Files { files, .. } = &plan.phases[0].partitions["prompts"].rows else {
        panic!("prompts come from files");
    };
    assert_eq!(files, &["/home/ada/a.parquet", "b.parquet"]);
    let model = "/home/ada/models/deepseek-llm-7b-chat";
    assert_eq!(plan.models["policy"].path, model, "a default of the parameters");
    let parameter = plan.phases[0].parameter("actor_rollout_ref.model.path");
    assert_eq!(parameter.unwrap(), model, "stages read the same");

    let error = planner(None).plan_text(&text, "x.yaml", &overrides).unwrap_err();
    let keys: Vec<_> = error.iter().map(|r| r.key.as_str()).collect();
    assert_eq!(keys, ["partitions.prompts.files[0]", "partitions.val.expand.files", "models.policy.path"], "{error}");
}
