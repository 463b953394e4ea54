//! AdamW (Loshchilov, Hutter: "Decoupled weight decay regularization", 2019) with PyTorch's order of operations, so that its numbers agree.

use tch::{Kind, Tensor};

use super::{StepReport, TrainOptions};
use crate::tensor;
use crate::weights::{DType, NamedTensor, NamedTensors, ParameterSpec};
use crate::{Error, Result};

/// Moments of every parameter and the number of updates.
pub(crate) struct AdamW {
    options: TrainOptions,
    /// Updates asked for: the schedule's position.
    scheduled: u64,
    /// Updates applied: the exponent of the bias corrections.
    applied: u64,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
}

const SCHEDULED: &str = "optimizer.scheduled";
const APPLIED: &str = "optimizer.applied";
const FIRST: &str = "optimizer.exp_avg.";
const SECOND: &str = "optimizer.exp_avg_sq.";

impl AdamW {
    /// Zero moments for `parameters`, which begin to record gradients.
    pub(crate) fn new(options: TrainOptions, parameters: &[Tensor]) -> Result<Self> {
        options.check()?;
        let zeros =
            || parameters.iter().map(|parameter| Ok(parameter.f_detach()?.f_zeros_like()?)).collect::<Result<Vec<_>>>();
        let (first, second) = (zeros()?, zeros()?);
        for parameter in parameters {
            let _ = parameter.f_set_requires_grad(true)?;
        }
        Ok(Self { options, scheduled: 0, applied: 0, first, second })
    }

    pub(crate) fn lr(&self) -> f64 {
        self.options.schedule.lr(self.scheduled)
    }

    /// Clips, updates every parameter, clears gradients, moves the schedule on.
    pub(crate) fn step(&mut self, parameters: &mut [Tensor]) -> Result<StepReport> {
        let _guard = tch::no_grad_guard();
        let lr = self.lr();
        let gradients: Vec<Option<Tensor>> = parameters
            .iter()
            .map(|parameter| Ok(Some(parameter.f_grad()?).filter(Tensor::defined)))
            .collect::<Result<_>>()?;
        let grad_norm = global_norm(&gradients)?;
        self.scheduled += 1;
        let applied = grad_norm.is_finite();
        if applied {
            self.applied += 1;
            let shrink = self.options.clip_grad.map_or(1.0, |limit| (limit / (grad_norm + 1e-6)).min(1.0));
            for (index, parameter) in parameters.iter_mut().enumerate() {
                if let Some(gradient) = &gradients[index] {
                    self.update(index, parameter, gradient, shrink, lr)?;
                }
            }
        }
        for parameter in parameters {
            parameter.zero_grad();
        }
        Ok(StepReport { grad_norm, lr, applied })
    }

    fn update(&mut self, index: usize, parameter: &mut Tensor, gradient: &Tensor, shrink: f64, lr: f64) -> Result<()> {
        let (beta1, beta2) = self.options.betas;
        let steps = self.applied as f64;
        let gradient = if shrink == 1.0 { gradient.shallow_clone() } else { gradient.f_mul_scalar(shrink)? };
        let (first, second) = (&mut self.first[index], &mut self.second[index]);
        let _ = parameter.f_mul_scalar_(1.0 - lr * self.options.weight_decay)?;
        let _ = first.f_lerp_(&gradient, 1.0 - beta1)?;
        let _ = second.f_mul_scalar_(beta2)?.f_add_(&gradient.f_square()?.f_mul_scalar_(1.0 - beta2)?)?;
        let correction1 = 1.0 - beta1.powf(steps);
        let correction2 = (1.0 - beta2.powf(steps)).sqrt();
        let denominator = second.f_sqrt()?.f_div_scalar_(correction2)?.f_add_scalar_(self.options.eps)?;
        let _ = parameter.f_sub_(&first.f_div(&denominator)?.f_mul_scalar_(lr / correction1)?)?;
        Ok(())
    }

    /// Of the moments: that of the parameters.
    fn dtype(&self) -> DType {
        let double = self.first.first().is_some_and(|moment| moment.kind() == Kind::Double);
        if double { DType::F64 } else { DType::F32 }
    }

    pub(crate) fn save(&self, specs: &[ParameterSpec]) -> Result<NamedTensors> {
        let mut state = NamedTensors::new();
        state.insert(SCHEDULED, NamedTensor::from_i64(self.scheduled as i64))?;
        state.insert(APPLIED, NamedTensor::from_i64(self.applied as i64))?;
        for (prefix, moments) in [(FIRST, &self.first), (SECOND, &self.second)] {
            for (spec, moment) in specs.iter().zip(moments) {
                state.insert(format!("{prefix}{}", spec.name), tensor::export(moment, self.dtype())?)?;
            }
        }
        Ok(state)
    }

    /// Nothing is changed unless everything fits.
    pub(crate) fn restore(&mut self, specs: &[ParameterSpec], state: &NamedTensors) -> Result<()> {
        let count = |name: &str| -> Result<u64> {
            let value = state.require(name)?.to_i64()?;
            u64::try_from(value).map_err(|_| Error::Training(format!("{name} is {value}; expected a count")))
        };
        let (scheduled, applied) = (count(SCHEDULED)?, count(APPLIED)?);
        let expected = 2 + 2 * specs.len();
        if state.len() != expected {
            return Err(Error::Training(format!(
                "the saved state has {} tensors, this model's has {expected}",
                state.len()
            )));
        }
        for prefix in [FIRST, SECOND] {
            for spec in specs {
                let name = format!("{prefix}{}", spec.name);
                let moment = state.require(&name)?;
                if moment.dtype() != self.dtype() || moment.shape() != spec.shape {
                    return Err(Error::Training(format!(
                        "{name} is {} {:?}, expected {} {:?}",
                        moment.dtype(),
                        moment.shape(),
                        self.dtype(),
                        spec.shape
                    )));
                }
            }
        }
        for (prefix, moments) in [(FIRST, &mut self.first), (SECOND, &mut self.second)] {
            for (spec, moment) in specs.iter().zip(moments) {
                moment.f_copy_(&tensor::import(state.require(&format!("{prefix}{}", spec.name))?)?)?;
            }
        }
        (self.scheduled, self.applied) = (scheduled, applied);
        Ok(())
    }
}

fn global_norm(gradients: &[Option<Tensor>]) -> Result<f64> {
    let mut squares = 0.0;
    for gradient in gradients.iter().flatten() {
        squares += f64::try_from(gradient.f_norm()?)?.powi(2);
    }
    Ok(squares.sqrt())
}
