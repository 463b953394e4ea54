//! Rotary positions (Su et al., "RoFormer", 2021), in the half-split form of Hugging Face's Llama.

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::config::{ModelConfig, RopeScaling};

/// Angles by position, made once and grown when a longer row comes.
pub(crate) struct Rope {
    frequencies: Vec<f32>,
    kind: Kind,
    device: Device,
    tables: RefCell<Option<Rotation>>,
    known: RefCell<usize>,
}

/// cos and signed sin, [positions, 1, head_dim] each: a head x becomes x·cos + swap(x)·sin, where swap exchanges the halves.
pub(crate) struct Rotation {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    pub(crate) fn new(config: &ModelConfig, kind: Kind, device: Device) -> Self {
        Self { frequencies: frequencies(config), kind, device, tables: RefCell::new(None), known: RefCell::new(0) }
    }

    /// The rotations of the given positions, all below `len`.
    pub(crate) fn at(&self, positions: &Tensor, len: usize) -> Result<Rotation> {
        let mut tables = self.tables.borrow_mut();
        let mut known = self.known.borrow_mut();
        if tables.is_none() || *known < len {
            let longer = len.next_power_of_two().max(64);
            *tables = Some(self.table(longer)?);
            *known = longer;
        }
        let table = tables.as_ref().expect("the table was made above");
        Ok(Rotation { cos: table.cos.f_index_select(0, positions)?, sin: table.sin.f_index_select(0, positions)? })
    }

    fn table(&self, len: usize) -> Result<Rotation> {
        let half = self.frequencies.len();
        let mut cos = Vec::with_capacity(len * 2 * half);
        let mut sin = Vec::with_capacity(len * 2 * half);
        for position in 0..len {
            // The product is rounded to f32 before the cosine, as the models were trained.
            let angles: Vec<f64> =
                self.frequencies.iter().map(|frequency| f64::from(position as f32 * frequency)).collect();
            cos.extend(angles.iter().chain(&angles).map(|angle| angle.cos() as f32));
            sin.extend(angles.iter().map(|angle| -angle.sin() as f32));
            sin.extend(angles.iter().map(|angle| angle.sin() as f32));
        }
        let shape = [len as i64, 1, 2 * half as i64];
        let place = |values: &[f32]| -> Result<Tensor> {
            Ok(Tensor::f_from_slice(values)?.f_view(shape)?.f_to_kind(self.kind)?.f_to(self.device)?)
        };
        Ok(Rotation { cos: place(&cos)?, sin: place(&sin)? })
    }
}

impl Rotation {
    /// Rotates heads [tokens, heads, head_dim].
    pub(crate) fn apply(&self, heads: &Tensor) -> Result<Tensor> {
        let half = heads.size()[2] / 2;
        let swapped = heads.f_roll([half].as_slice(), [-1].as_slice())?;
        Ok(heads.f_mul(&self.cos)?.f_add(&swapped.f_mul(&self.sin)?)?)
    }
}

/// One frequency for each pair of head elements, in radians a position.
fn frequencies(config: &ModelConfig) -> Vec<f32> {
    let width = config.head_dim;
    (0..width / 2)
        .map(|pair| {
            let frequency = 1.0 / config.rope_theta.powf(2.0 * pair as f64 / width as f64);
            stretched(frequency, config.rope_scaling) as f32
        })
        .collect()
}

fn stretched(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
            // Turns over the original context: many for short wavelengths, which are kept; few for long ones, which are stretched.
            let turns = original_max_position_embeddings as f64 * frequency / std::f64::consts::TAU;
            let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            frequency * kept + frequency / factor * (1.0 - kept)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        assert_eq!(stretched(1.0, scaling), 1.0);
        let long = std::f64::consts::TAU / 10_000.0;
        assert_eq!(stretched(long, scaling), long / 8.0);
        let between = std::f64::consts::TAU / 4096.0;
        let expected = between * (1.0 / 3.0) + between / 8.0 * (2.0 / 3.0);
        assert!((stretched(between, scaling) - expected).abs() < 1e-15);
    }
}
