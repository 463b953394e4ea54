//! What is asked of scored tokens, and the plain numbers that come and go.

use crate::weights::Head;
use crate::{Error, Result};

/// What to compute for each scored token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Want {
    /// ln p(token | tokens before it).
    pub log_probs: bool,
    /// −Σ p ln p of the distribution the token was drawn from.
    pub entropy: bool,
    /// Σ p² of that distribution. Carries no gradient.
    pub sum_pi_squared: bool,
    /// The value of the state before the token.
    pub values: bool,
    /// Logits are divided by this before the softmax.
    pub temperature: f64,
}

impl Want {
    const NOTHING: Self =
        Self { log_probs: false, entropy: false, sum_pi_squared: false, values: false, temperature: 1.0 };

    /// Log-probs alone.
    pub fn log_probs(temperature: f64) -> Self {
        Self { log_probs: true, temperature, ..Self::NOTHING }
    }

    /// Log-probs and entropies.
    pub fn log_probs_and_entropy(temperature: f64) -> Self {
        Self { entropy: true, ..Self::log_probs(temperature) }
    }

    /// Values alone.
    pub fn values() -> Self {
        Self { values: true, ..Self::NOTHING }
    }

    fn of_logits(&self) -> bool {
        self.log_probs || self.entropy || self.sum_pi_squared
    }

    /// Checks that a model with `head` can answer.
    pub(crate) fn check(&self, head: Head) -> Result<()> {
        match head {
            Head::Lm if self.values => Err(Error::Batch(
                "values were asked of a model with a vocabulary head; open it with a value head".into(),
            )),
            Head::Value if self.of_logits() => Err(Error::Batch(
                "log-probs or entropies were asked of a model with a value head; open it with a vocabulary head".into(),
            )),
            _ if !(self.of_logits() || self.values) => {
                Err(Error::Batch("nothing was asked for; set a field of `Want`".into()))
            }
            _ if !(self.temperature > 0.0 && self.temperature.is_finite()) => {
                Err(Error::Batch(format!("temperature is {}; scoring needs a positive number", self.temperature)))
            }
            _ => Ok(()),
        }
    }
}

/// Numbers of the scored tokens of a batch, row after row; a field that was not asked for is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// ln p of each scored token, natural logarithm.
    pub log_probs: Vec<f32>,
    /// Entropy in nats.
    pub entropy: Vec<f32>,
    /// Σ p².
    pub sum_pi_squared: Vec<f32>,
    /// Values.
    pub values: Vec<f32>,
}

/// d loss / d output for each scored token. A field left empty counts as zeros.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenGradients {
    /// With respect to log-probs.
    pub log_probs: Vec<f32>,
    /// With respect to entropies.
    pub entropy: Vec<f32>,
    /// With respect to values.
    pub values: Vec<f32>,
}

/// Checks that gradients belong to what was asked for.
pub(super) fn checked(gradients: TokenGradients, want: &Want, count: usize) -> Result<TokenGradients> {
    for (name, values, wanted) in [
        ("log_probs", &gradients.log_probs, want.log_probs),
        ("entropy", &gradients.entropy, want.entropy),
        ("values", &gradients.values, want.values),
    ] {
        if values.is_empty() {
            continue;
        }
        if !wanted {
            return Err(Error::Training(format!(
                "the loss function returned gradients of {name}, which were not asked for in `Want`"
            )));
        }
        if values.len() != count {
            return Err(Error::Training(format!(
                "the loss function returned {} gradients of {name}, there are {count} scored tokens",
                values.len()
            )));
        }
    }
    Ok(gradients)
}
