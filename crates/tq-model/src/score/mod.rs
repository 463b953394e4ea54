//! From hidden states to the numbers of scored tokens: log-probs, entropies, values.
//!
//! With a large vocabulary the [tokens, vocab] logits are the largest thing in memory. They are made in slices, and for training made a second
//! time slice by slice with gradients, so that only one slice of them is ever alive.

mod stats;

use tch::Tensor;

use crate::batch::{Layout, MIN_ROWS, PackedBatch};
use crate::decoder::Decoder;
use crate::tensor;
use crate::weights::Head;
use crate::{Error, Result};

use stats::checked;

pub use stats::{TokenGradients, TokenStats, Want};

/// Logits alive at once, at most (64 MiB of f32).
const SLICE_ELEMENTS: usize = 16 << 20;

/// The same as tensors, with gradients where they are on.
#[derive(Default)]
struct Outputs {
    log_probs: Option<Tensor>,
    entropy: Option<Tensor>,
    sum_pi_squared: Option<Tensor>,
    values: Option<Tensor>,
}

impl Outputs {
    /// Drops filler rows and reads the numbers.
    fn append_to(&self, stats: &mut TokenStats, count: i64) -> Result<()> {
        let append = |from: &Option<Tensor>, to: &mut Vec<f32>| -> Result<()> {
            if let Some(tensor) = from {
                to.extend(tensor::to_vec(&tensor.f_detach()?.f_narrow(0, 0, count)?)?);
            }
            Ok(())
        };
        append(&self.log_probs, &mut stats.log_probs)?;
        append(&self.entropy, &mut stats.entropy)?;
        append(&self.sum_pi_squared, &mut stats.sum_pi_squared)?;
        append(&self.values, &mut stats.values)
    }

    /// Σ output · gradient over the scored tokens `from..from + count`: its gradient is the loss's.
    fn weighted(&self, gradients: &TokenGradients, from: usize, count: usize) -> Result<Option<Tensor>> {
        let mut sum: Option<Tensor> = None;
        for (output, values) in [
            (&self.log_probs, &gradients.log_probs),
            (&self.entropy, &gradients.entropy),
            (&self.values, &gradients.values),
        ] {
            let Some(output) = output.as_ref().filter(|_| !values.is_empty()) else {
                continue;
            };
            let gradient = Tensor::f_from_slice(&values[from..from + count])?.f_to(output.device())?;
            let part = output.f_narrow(0, 0, count as i64)?.f_mul(&gradient)?.f_sum(output.kind())?;
            sum = Some(match sum {
                Some(sum) => sum.f_add(&part)?,
                None => part,
            });
        }
        Ok(sum)
    }
}

/// Computes numbers from hidden states [rows ≥ 16, hidden] whose next tokens are `targets` [rows].
fn outputs(decoder: &Decoder, hidden: &Tensor, targets: &Tensor, want: &Want) -> Result<Outputs> {
    if decoder.head() == Head::Value {
        return Ok(Outputs { values: Some(values(decoder, hidden)?), ..Outputs::default() });
    }
    let mut scaled = logits(decoder, hidden)?;
    if want.temperature != 1.0 {
        scaled = scaled.f_div_scalar(want.temperature)?;
    }
    let kind = scaled.kind();
    let log_probs = scaled.f_log_softmax(-1, kind)?;
    let mut outputs = Outputs::default();
    if want.entropy || want.sum_pi_squared {
        // A second softmax, not exp of the first: libtorch's exp has other last bits at the end of a buffer, its softmax runs row by row.
        let probs = scaled.f_softmax(-1, kind)?;
        if want.entropy {
            outputs.entropy =
                Some(probs.f_mul(&log_probs)?.f_sum_dim_intlist([-1i64].as_slice(), false, kind)?.f_neg()?);
        }
        if want.sum_pi_squared {
            outputs.sum_pi_squared =
                Some(probs.f_detach()?.f_square()?.f_sum_dim_intlist([-1i64].as_slice(), false, kind)?);
        }
    }
    if want.log_probs {
        outputs.log_probs = Some(log_probs.f_gather(1, &targets.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?);
    }
    Ok(outputs)
}

/// Logits [rows, vocab] in f32 (f64 for a model in f64).
pub(crate) fn logits(decoder: &Decoder, hidden: &Tensor) -> Result<Tensor> {
    let weight = decoder.projection();
    let weight =
        if weight.kind() == hidden.kind() { weight.shallow_clone() } else { weight.f_to_kind(hidden.kind())? };
    Ok(hidden.f_linear(&weight, None::<&Tensor>)?.f_to_kind(tensor::statistics(hidden.kind()))?)
}

impl Decoder {
    /// Logits of one row at some of its positions, [positions, vocab] in f32, row-major: for inspection.
    ///
    /// # Errors
    /// The row does not fit the model, a position is outside it, or the model has no vocabulary head.
    pub fn logits_at(&self, ids: &[i64], positions: &[i64]) -> Result<Vec<f32>> {
        Want::log_probs(1.0).check(self.head())?;
        if let Some(position) = positions.iter().find(|position| !(0..ids.len() as i64).contains(*position)) {
            return Err(Error::Batch(format!("position {position} was asked for in a row of {} tokens", ids.len())));
        }
        let _guard = tch::no_grad_guard();
        let batch = PackedBatch::from_packed(ids.to_vec(), &[0, ids.len() as i64])?;
        let hidden = self.hidden(&self.layout(&batch)?, None)?;
        let mut filled = positions.to_vec();
        filled.resize(positions.len().max(MIN_ROWS), 0);
        let logits = logits(self, &hidden.f_index_select(0, &tensor::indices(&filled, self.placement().device)?)?)?;
        tensor::to_vec(&logits.f_narrow(0, 0, positions.len() as i64)?.f_flatten(0, -1)?)
    }
}

/// Values [rows] in f32 (f64 for a model in f64).
fn values(decoder: &Decoder, hidden: &Tensor) -> Result<Tensor> {
    // A product with a single output column runs another kernel, whose bits depend on the row; with fifteen idle columns it does not.
    let kind = tensor::statistics(hidden.kind());
    let weight =
        decoder.projection().f_to_kind(kind)?.f_constant_pad_nd([0i64, 0, 0, MIN_ROWS as i64 - 1].as_slice())?;
    Ok(hidden.f_to_kind(kind)?.f_linear(&weight, None::<&Tensor>)?.f_select(1, 0)?)
}

/// Scored tokens in slices: (first, count, indices of their hidden states filled to at least 16, their targets filled likewise).
fn slices<'a>(
    decoder: &Decoder,
    layout: &'a Layout,
) -> Result<impl Iterator<Item = Result<(usize, usize, Tensor, Tensor)>> + use<'a>> {
    let device = decoder.placement().device;
    let width = match decoder.head() {
        Head::Lm => decoder.config().vocab_size as usize,
        Head::Value => MIN_ROWS,
    };
    let step = (SLICE_ELEMENTS / width).max(MIN_ROWS);
    let total = layout.sources.len();
    Ok((0..total).step_by(step).map(move |first| {
        let count = step.min(total - first);
        let filled = |values: &[i64]| {
            let mut values = values[first..first + count].to_vec();
            values.resize(count.max(MIN_ROWS), 0);
            tensor::indices(&values, device)
        };
        Ok((first, count, filled(&layout.sources)?, filled(&layout.targets)?))
    }))
}

/// Numbers without gradients.
pub(crate) fn evaluate(decoder: &Decoder, layout: &Layout, want: &Want) -> Result<TokenStats> {
    let _guard = tch::no_grad_guard();
    let hidden = decoder.hidden(layout, None)?;
    from_hidden(decoder, layout, &hidden, want)
}

fn from_hidden(decoder: &Decoder, layout: &Layout, hidden: &Tensor, want: &Want) -> Result<TokenStats> {
    let _guard = tch::no_grad_guard();
    let mut stats = TokenStats::default();
    for slice in slices(decoder, layout)? {
        let (_, count, sources, targets) = slice?;
        outputs(decoder, &hidden.f_index_select(0, &sources)?, &targets, want)?.append_to(&mut stats, count as i64)?;
    }
    Ok(stats)
}

/// Forward, the caller's loss, backward: adds to the gradients of the parameters and returns the numbers.
pub(crate) fn differentiate(
    decoder: &Decoder,
    layout: &Layout,
    want: &Want,
    loss: &mut dyn FnMut(&TokenStats) -> Result<TokenGradients>,
) -> Result<TokenStats> {
    let hidden = decoder.hidden(layout, None)?;
    let mut pieces: Vec<(usize, usize, Tensor, Tensor)> = slices(decoder, layout)?.collect::<Result<_>>()?;
    if pieces.len() == 1 {
        let (_, count, sources, targets) = pieces.remove(0);
        let outputs = outputs(decoder, &hidden.f_index_select(0, &sources)?, &targets, want)?;
        drop(hidden);
        let mut stats = TokenStats::default();
        outputs.append_to(&mut stats, count as i64)?;
        let gradients = checked(loss(&stats)?, want, count)?;
        if let Some(sum) = outputs.weighted(&gradients, 0, count)? {
            sum.f_backward()?;
        }
        return Ok(stats);
    }
    let stats = from_hidden(decoder, layout, &hidden, want)?;
    let gradients = checked(loss(&stats)?, want, layout.sources.len())?;
    // The slices' gradients gather at the hidden states, which then go through the blocks once.
    let leaf = hidden.f_detach()?.f_set_requires_grad(true)?;
    for (first, count, sources, targets) in pieces {
        let outputs = outputs(decoder, &leaf.f_index_select(0, &sources)?, &targets, want)?;
        if let Some(sum) = outputs.weighted(&gradients, first, count)? {
            sum.f_backward()?;
        }
    }
    let gradient = leaf.f_grad()?;
    if gradient.defined() {
        hidden.f_mul(&gradient)?.f_sum(tensor::statistics(hidden.kind()))?.f_backward()?;
    }
    Ok(stats)
}
