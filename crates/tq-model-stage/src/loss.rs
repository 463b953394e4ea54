//! Settings that several losses share.

use anyhow::Result;
use tq_math::aggregate::Mode;
use tq_stage::{Parameters, Range, Refusal};

/// How a section aggregates the losses of tokens: `loss_agg_mode`, and `loss_scale_factor` where it is set.
///
/// # Errors
/// For a mode that is not built in, a factor that is not positive, and one that is missing where the mode needs it.
pub fn aggregation(parameters: &Parameters, section: &str) -> Result<(Mode, Option<f64>)> {
    let (mode_key, factor_key) = (format!("{section}.loss_agg_mode"), format!("{section}.loss_scale_factor"));
    let name: String = parameters.get(&mode_key)?;
    let mode = name.parse().map_err(|error| refusal(&mode_key, error))?;
    let factor = parameters.get_or(&factor_key, None)?;
    match factor {
        Some(factor) => Range::Above(0.0).check(factor_key, factor)?,
        None if mode == Mode::SeqMeanTokenSumNorm => {
            let expected = format!("a number above 0: {mode_key} `{name}` divides by it");
            return Err(Refusal::new(factor_key, "nothing", expected).into());
        }
        None => {}
    }
    Ok((mode, factor))
}

/// The temperature that log-probs are computed at.
///
/// # Errors
/// When it is not positive: at 0 a response has no log-probs to train on.
pub fn temperature(parameters: &Parameters) -> Result<f64> {
    let key = "actor_rollout_ref.rollout.temperature";
    let temperature = parameters.get(key)?;
    Range::Above(0.0).check(key, temperature)?;
    Ok(temperature)
}

/// What `tq-math` says of a setting, as a refusal of `key`, or of the key beside it that the error names.
pub fn refusal(key: &str, error: tq_math::Error) -> anyhow::Error {
    match error {
        tq_math::Error::Unknown { found, known, .. } => {
            Refusal::new(key, format!("`{found}`"), format!("one of {}", known.join(", "))).into()
        }
        tq_math::Error::Parameter { name, found, expected } => {
            let section = key.rsplit_once('.').map_or("", |(section, _)| section);
            Refusal::new(format!("{section}.{name}"), found, expected).into()
        }
        other => anyhow::Error::from(other).context(key.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(mode: &str, factor: Value) -> Result<(Mode, Option<f64>), String> {
        let tree = json!({"critic": {"loss_agg_mode": mode, "loss_scale_factor": factor}});
        aggregation(&Parameters::new(tree), "critic").map_err(|error| error.to_string())
    }

    #[test]
    fn a_mode_and_the_factor_it_needs() {
        assert_eq!(read("token-mean", Value::Null), Ok((Mode::TokenMean, None)));
        assert_eq!(read("seq-mean-token-sum-norm", json!(512)), Ok((Mode::SeqMeanTokenSumNorm, Some(512.0))));
        let refused = read("seq-mean-token-sum-norm", Value::Null).expect_err("no factor");
        assert!(refused.starts_with("critic.loss_scale_factor: found nothing; expected a number above 0"), "{refused}");
        assert!(read("token-mean", json!(0)).expect_err("0").contains("loss_scale_factor: found 0; expected"));
        let refused = read("token-men", Value::Null).expect_err("a slip");
        assert!(
            refused.starts_with("critic.loss_agg_mode: found `token-men`; expected one of token-mean"),
            "{refused}"
        );
    }

    #[test]
    fn log_probs_need_a_temperature_above_0() {
        let at = |t: f64| temperature(&Parameters::new(json!({"actor_rollout_ref": {"rollout": {"temperature": t}}})));
        assert_eq!(at(0.7).expect("positive"), 0.7);
        assert_eq!(
            at(0.0).expect_err("greedy").to_string(),
            "actor_rollout_ref.rollout.temperature: found 0; expected a number above 0"
        );
    }
}
