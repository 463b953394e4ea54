//! The built-in stages as the planner sees them: a catalog without any stage behind it.

#![allow(unreachable_pub, dead_code, reason = "shared by several test binaries")]

use std::path::PathBuf;

use serde_json::Value as Json;
use tq_schedule::port::{Dtype, Extent, Input, Kind, Output, Per};
use tq_schedule::{DescribeError, Override, Plan, Planner, Ports, Query, Refusals, SourceFiles, StageCatalog};

/// Ports of the built-in stages under given parameters.
pub struct Builtin;

fn ragged(dtype: Dtype) -> Kind {
    Kind::Ragged { dtype, inner: Vec::new() }
}

fn tokens(name: &str) -> Input {
    Input::new(name, ragged(Dtype::I64))
}

fn floats(name: &str) -> Input {
    Input::new(name, ragged(Dtype::F32))
}

fn text(name: &str) -> Input {
    Input::new(name, Kind::Utf8)
}

fn written(name: &str) -> Output {
    Output::new(name, ragged(Dtype::F32))
}

fn old_log_probs() -> Input {
    floats("old_log_probs").from_first_of(&["old_log_probs", "rollout_log_probs"]).requires("distribution", "full")
}

impl StageCatalog for Builtin {
    fn describe(&self, query: &Query<'_>) -> Result<Ports, DescribeError> {
        let number = |path: &str| query.parameters.pointer(path).and_then(Json::as_u64).unwrap_or(0);
        let flag = |path: &str| query.parameters.pointer(path) == Some(&Json::Bool(true));
        let rollout = &query.parameters["actor_rollout_ref"]["rollout"];
        let estimator = query.parameters["algorithm"]["adv_estimator"].as_str().unwrap_or_default();
        let full = rollout["top_k"] == -1 && rollout["top_p"].as_f64().is_some_and(|p| p >= 1.0);
        let actor = "actor_rollout_ref.actor";
        Ok(match query.stage {
            "dataset" => Ports::new(
                vec![],
                vec![
                    Output::new("prompt", ragged(Dtype::I64)).extent(Extent::Prompt),
                    Output::new("ground_truth", Kind::Utf8).extent(Extent::Fixed(256)),
                    Output::new("data_source", Kind::Utf8).extent(Extent::Fixed(64)),
                    Output::new("extra_info", Kind::Json).extent(Extent::Fixed(64)),
                    Output::new("grade", Kind::Utf8).extent(Extent::Fixed(8)),
                ],
            )
            .configured_by(&["data"]),
            "validation" => Ports::new(vec![floats("token_level_scores"), text("data_source")], vec![]),
            "archive" => Ports::new(vec![], vec![]).per(Per::Mini),
            "rollout" => Ports::new(
                vec![tokens("prompt")],
                vec![
                    Output::new("responses", ragged(Dtype::I64)).resumable(),
                    written("rollout_log_probs")
                        .optional()
                        .carries("distribution", if full { "full" } else { "truncated" }),
                ],
            )
            .model("causal-lm")
            .configured_by(&["actor_rollout_ref.rollout"]),
            "reward" => Ports::new(
                vec![
                    tokens("prompt").optional(),
                    tokens("responses"),
                    text("ground_truth"),
                    text("data_source"),
                    Input::new("extra_info", Kind::Json).optional(),
                ],
                vec![written("token_level_scores")],
            )
            .configured_by(&["reward"]),
            "log-prob" => Ports::new(
                vec![tokens("prompt"), tokens("responses")],
                vec![written("log_probs").carries("distribution", "full")],
            )
            .model("causal-lm")
            .per(Per::Mini)
            .configured_by(&["actor_rollout_ref.ref"]),
            "value" => Ports::new(vec![tokens("prompt"), tokens("responses")], vec![written("values")])
                .model("value-lm")
                .per(Per::Mini)
                .configured_by(&["critic"]),
            "kl-reward" => Ports::new(
                vec![floats("token_level_scores"), old_log_probs(), floats("ref_log_probs")],
                vec![written("token_level_rewards")],
            )
            .per(Per::Cycle)
            .configured_by(&["algorithm"]),
            "advantage" => {
                let rewards =
                    floats("token_level_rewards").from_first_of(&["token_level_rewards", "token_level_scores"]);
                let inputs = if estimator == "gae" { vec![rewards, floats("values")] } else { vec![rewards] };
                Ports::new(inputs, vec![written("advantages"), written("returns").optional()])
                    .per(Per::Group)
                    .configured_by(&["algorithm"])
            }
            "policy-update" => {
                let mut inputs = vec![tokens("prompt"), tokens("responses"), old_log_probs(), floats("advantages")];
                if flag("/actor_rollout_ref/actor/use_kl_loss") {
                    inputs.push(floats("ref_log_probs"));
                }
                let mini = number("/actor_rollout_ref/actor/ppo_mini_batch_size");
                let epochs = number("/actor_rollout_ref/actor/ppo_epochs");
                Ports::new(inputs, vec![])
                    .model("causal-lm")
                    .trains(mini, "actor_rollout_ref.actor.ppo_mini_batch_size", epochs)
                    .sized_by(&["prompt", "responses"])
                    .configured_by(&[actor])
            }
            "value-update" => {
                let inputs = vec![tokens("prompt"), tokens("responses"), floats("values"), floats("returns")];
                Ports::new(inputs, vec![])
                    .model("value-lm")
                    .trains(
                        number("/critic/ppo_mini_batch_size"),
                        "critic.ppo_mini_batch_size",
                        number("/critic/ppo_epochs"),
                    )
                    .configured_by(&["critic"])
            }
            "sft" => Ports::new(vec![tokens("prompt"), text("ground_truth")], vec![])
                .model("causal-lm")
                .trains(number("/data/train_batch_size"), "data.train_batch_size", 1)
                .configured_by(&[actor]),
            // Stands for a user's stage that adds a column to the source.
            "grade" => {
                Ports::new(vec![tokens("prompt")], vec![Output::new("grade", Kind::Utf8).extent(Extent::Fixed(8))])
            }
            // Stands for a user's stage: its own settings, a column of another type.
            "length-penalty" => {
                let weight = query.with.get("weight").unwrap_or(&Json::Null);
                if !weight.is_number() {
                    return Err(DescribeError::Parameter {
                        key: "with.weight".into(),
                        found: weight.to_string(),
                        expected: "a number".into(),
                    });
                }
                Ports::new(
                    vec![tokens("responses"), floats("token_level_scores")],
                    vec![Output::new("length_penalty", Kind::Dense { dtype: Dtype::F32, shape: Vec::new() })],
                )
            }
            _ => return Err(DescribeError::Unknown),
        })
    }

    fn stages(&self) -> Vec<String> {
        [
            "rollout",
            "reward",
            "log-prob",
            "value",
            "kl-reward",
            "advantage",
            "policy-update",
            "value-update",
            "sft",
            "length-penalty",
            "grade",
        ]
        .map(str::to_owned)
        .into()
    }

    fn check_device(&self, name: &str) -> Result<(), String> {
        if ["cpu", "cuda"].contains(&name) { Ok(()) } else { Err("`cpu` or `cuda`".into()) }
    }

    fn model_kinds(&self) -> Vec<String> {
        vec!["causal-lm".into(), "value-lm".into()]
    }
}

/// 650 training prompts and 160 held out.
pub fn count(source: &SourceFiles<'_>) -> Option<u64> {
    Some(if source.evaluated { 160 } else { 650 })
}

/// A pipeline of the repository.
pub fn pipeline(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../pipelines").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn overrides(arguments: &[&str]) -> Vec<Override> {
    arguments.iter().map(|a| Override::parse(a).unwrap()).collect()
}

/// Plans one of the repository's pipelines.
pub fn plan(name: &str, arguments: &[&str]) -> Result<Plan, Refusals> {
    plan_text(&pipeline(name), &format!("pipelines/{name}"), arguments)
}

/// Plans a pipeline given as text.
pub fn plan_text(text: &str, name: &str, arguments: &[&str]) -> Result<Plan, Refusals> {
    Planner::new(&Builtin).rows(&count).plan_text(text, name, &overrides(arguments))
}
