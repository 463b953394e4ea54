//! The keys of `trainer` that the program itself reads.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, de::DeserializeOwned};
use tq_schedule::Plan;
use tq_stage::Parameters;

/// Where metrics go besides `metrics.jsonl`, which is always written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Logger {
    /// The progress bar.
    Console,
    /// `metrics.jsonl`: named for those who want nothing else.
    File,
    /// TensorBoard event files.
    Tensorboard,
}

/// Checks what is only read once the run has begun.
///
/// # Errors
/// The first value that does not suit, with its key.
pub(crate) fn check(plan: &Plan) -> Result<()> {
    loggers(plan)?;
    for name in read::<Vec<String>>(plan, "trainer.logger")?.unwrap_or_default() {
        if ELSEWHERE.contains(&name.as_str()) {
            tracing::warn!("trainer.logger: `{name}` is not built in and is left out; metrics.jsonl has every value");
        }
    }
    kept_states(plan)?;
    Ok(())
}

/// verl's loggers that need a service or a library of Python.
const ELSEWHERE: [&str; 6] = ["wandb", "mlflow", "swanlab", "vemlp_wandb", "clearml", "trackio"];

/// `trainer.logger`: those that are built in. verl's others are left out ([`check`] says so), so that its launch lines go
/// through.
///
/// # Errors
/// For a logger that nobody knows, naming it.
pub(crate) fn loggers(plan: &Plan) -> Result<Vec<Logger>> {
    let names: Vec<String> = read(plan, "trainer.logger")?.unwrap_or_default();
    let mut loggers = Vec::new();
    for name in names {
        match serde_json::from_value(serde_json::Value::String(name.clone())) {
            Ok(logger) => loggers.push(logger),
            Err(_) if ELSEWHERE.contains(&name.as_str()) => {}
            Err(_) => bail!("trainer.logger: found `{name}`; expected a list of console, file and tensorboard"),
        }
    }
    Ok(loggers)
}

/// `trainer.max_actor_ckpt_to_keep`: named states that are kept, older ones are deleted once a newer one is named.
/// `None`: all.
///
/// # Errors
/// When it is less than 1.
pub(crate) fn kept_states(plan: &Plan) -> Result<Option<usize>> {
    let Some(kept) = read::<i64>(plan, "trainer.max_actor_ckpt_to_keep")? else { return Ok(None) };
    ensure!(
        kept > 0,
        "trainer.max_actor_ckpt_to_keep: found {kept}; expected at least 1 named state, or null to keep all"
    );
    Ok(Some(usize::try_from(kept).context("trainer.max_actor_ckpt_to_keep")?))
}

fn read<T: DeserializeOwned>(plan: &Plan, key: &str) -> Result<Option<T>> {
    Parameters::new(plan.parameters.clone()).get_or(key, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(argument: &str) -> Result<Plan> {
        let pipeline = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pipelines/quickstart.yaml");
        crate::App::new().plan(&[pipeline.to_owned(), argument.to_owned()])
    }

    #[test]
    fn loggers_are_known_or_refused_by_name() {
        let silent = plan("trainer.logger=[file]").expect("a known logger");
        assert_eq!(loggers(&silent).expect("checked by the plan"), [Logger::File]);
        let elsewhere = plan("trainer.logger=[console,wandb]").expect("verl's own default");
        assert_eq!(loggers(&elsewhere).expect("checked by the plan"), [Logger::Console]);
        let refused = plan("trainer.logger=[console,wandbb]").expect_err("a logger that nobody knows");
        assert!(refused.to_string().contains("`wandbb`"), "{refused}");
    }

    #[test]
    fn as_many_states_are_kept_as_the_parameter_says() {
        let kept = |argument: &str| kept_states(&plan(argument).expect("a valid number")).expect("checked by the plan");
        assert_eq!(kept("trainer.seed=1"), Some(2));
        assert_eq!(kept("trainer.max_actor_ckpt_to_keep=5"), Some(5));
        assert_eq!(kept("trainer.max_actor_ckpt_to_keep=null"), None);
        assert!(plan("trainer.max_actor_ckpt_to_keep=0").is_err());
    }
}
