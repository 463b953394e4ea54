//! Parameters that act only through the pipeline: one that nothing there takes up must not be silent.

use tq_config::{Node, Origin, Refusal, Refusals, Value};

use crate::plan::Note;

/// Keys that nobody but the pipeline reads, by `${…}`.
const REFERRED_TO: [&str; 8] = [
    "data.train_files",
    "data.val_files",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.val_kwargs.n",
    "critic.model.path",
    "trainer.critic_warmup",
    "trainer.test_freq",
];

/// Notes what was set and has no effect in this pipeline; refuses what would change the result and is not done.
pub(super) fn check(tree: &Node, pipeline: &Node, refusals: &mut Refusals, notes: &mut Vec<Note>) {
    let mut note = |key: &str, reason: String| {
        let at = tree.get(key).map_or(String::new(), |n| n.at.to_string());
        notes.push(Note { key: key.to_owned(), at, reason });
    };
    for key in REFERRED_TO {
        let reference = format!("${{{key}}}");
        let set = tree.get(key).is_some_and(|node| is_set(node.place()));
        if set && !mentions(pipeline, &reference) {
            note(key, format!("this pipeline does not refer to it (`{reference}`)"));
        }
    }
    let on = |key: &str| matches!(tree.get(key).map(|n| &n.value), Some(Value::Bool(true)));
    if on("critic.enable") && !mentions(pipeline, "need.critic") {
        note("critic.enable", "no stage of this pipeline follows it (`when: need.critic`)".into());
    }
    let follow: [(&str, &[&str], &str); 2] = [
        ("algorithm.filter_groups.enable", &["need.filter"], "add a stage that filters, with `when: need.filter`"),
        (
            "algorithm.use_kl_in_reward",
            &["algorithm.use_kl_in_reward", "kl-reward"],
            "add the stages of pipelines/grpo.yaml that it switches: `kl` and `reference`",
        ),
    ];
    for (key, texts, action) in follow {
        if let Some(node) = tree.get(key)
            && on(key)
            && !texts.iter().any(|text| mentions(pipeline, text))
        {
            refusals.push(
                Refusal::new(key, "true", "false: no stage of this pipeline follows it")
                    .at(node.place())
                    .action(action),
            );
        }
    }
}

/// Whether somebody set a value: it is not the built-in default.
fn is_set(at: &Origin) -> bool {
    match at {
        Origin::File { file, .. } => **file != *"configs/parameters.yaml",
        Origin::Override(_) => true,
        Origin::Code(_) => false,
    }
}

/// Whether a text of the pipeline, outside its `parameters`, contains `text`.
fn mentions(pipeline: &Node, text: &str) -> bool {
    let within = |path: &str| path == "parameters" || path.starts_with("parameters.");
    pipeline.leaves().iter().any(|(path, node)| !within(path) && has(node, text))
}

fn has(node: &Node, text: &str) -> bool {
    match &node.value {
        Value::Str(found) => found.contains(text),
        Value::List(items) => items.iter().any(|item| has(item, text)),
        _ => false,
    }
}
