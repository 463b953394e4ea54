//! Gradients as one vector in the host's memory: what travels between data-parallel workers.

use tch::{Device, Kind, Tensor};

use crate::{Error, Result};

/// A vector in the type that parameters are kept in.
#[derive(Clone, Debug, PartialEq)]
pub enum Flat {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
}

impl Flat {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The gradients of `parameters`, one after the other, row-major (copied).
pub(crate) fn flatten(parameters: &[Tensor]) -> Result<Flat> {
    let _guard = tch::no_grad_guard();
    let one = |parameter: &Tensor| -> Result<Tensor> {
        let gradient = parameter.f_grad()?;
        let gradient = if gradient.defined() { gradient } else { parameter.f_detach()?.f_zeros_like()? };
        Ok(gradient.f_reshape([-1i64].as_slice())?)
    };
    let parts = parameters.iter().map(one).collect::<Result<Vec<_>>>()?;
    let whole = Tensor::f_cat(&parts, 0)?.f_to(Device::Cpu)?;
    Ok(match whole.kind() {
        Kind::Double => Flat::F64(Vec::try_from(&whole)?),
        _ => Flat::F32(Vec::try_from(&whole)?),
    })
}

/// Writes a vector of [`flatten`]'s form back as gradients. Nothing is changed unless it fits.
pub(crate) fn unflatten(parameters: &[Tensor], gradients: &Flat) -> Result<()> {
    let expected: usize = parameters.iter().map(Tensor::numel).sum();
    let double = parameters.first().is_some_and(|parameter| parameter.kind() == Kind::Double);
    if gradients.len() != expected || double != matches!(gradients, Flat::F64(_)) {
        let kind = if double { "f64" } else { "f32" };
        let found = if matches!(gradients, Flat::F64(_)) { "f64" } else { "f32" };
        let len = gradients.len();
        return Err(Error::Training(format!("{len} gradients of {found} were given, expected {expected} of {kind}")));
    }
    let whole = match gradients {
        Flat::F32(values) => Tensor::f_from_slice(values)?,
        Flat::F64(values) => Tensor::f_from_slice(values)?,
    };
    let mut first = 0;
    for parameter in parameters {
        let len = parameter.numel() as i64;
        let part = whole.f_narrow(0, first, len)?.f_view(parameter.size().as_slice())?;
        gradient_of(parameter)?.f_copy_(&part)?;
        first += len;
    }
    Ok(())
}

/// The tensor that a parameter's gradients gather in. One that took part in nothing yet is given zeros.
fn gradient_of(parameter: &Tensor) -> Result<Tensor> {
    let gradient = parameter.f_grad()?;
    if gradient.defined() {
        return Ok(gradient);
    }
    let nothing = parameter.f_detach()?.f_zeros_like()?;
    parameter.f_mul(&nothing)?.f_sum(parameter.kind())?.f_backward()?;
    Ok(parameter.f_grad()?)
}
