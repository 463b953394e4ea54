//! Keys and values of every slot, and attention over them.
//!
//! Scores are made in chunks of a fixed number of cached positions, as many chunks as the longest running row needs. Every product thus has the
//! same shape for every row, and a chunk beyond a row's end adds exact zeros to it: a row's bits do not depend on how long the others are.

use tch::{Device, Kind, Tensor};

use super::slots::Move;
use crate::Result;
use crate::batch::Layout;
use crate::config::ModelConfig;
use crate::tensor;

pub(crate) struct Cache {
    /// Per block [slots, kv heads, len, head_dim].
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    slots: i64,
    len: i64,
    chunk: i64,
    kv_heads: i64,
    head_dim: i64,
    device: Device,
}

/// What one decoding step shares between the blocks.
pub(crate) struct Step {
    rows: i64,
    /// All rows are positions of this slot's row; `None`: row r is a position of slot r.
    slot: Option<i64>,
    chunks: i64,
    /// Where new keys go in a block's cache seen as [slots * kv heads * len, head_dim]; the rows beyond them store nothing.
    targets: Tensor,
    /// 0 for positions a row sees, −∞ beyond: [rows, 1, 1, chunks * chunk].
    mask: Tensor,
}

impl Cache {
    pub(crate) fn new(config: &ModelConfig, slots: usize, max_len: usize, kind: Kind, device: Device) -> Result<Self> {
        // Short caches are one chunk; long ones waste at most an eighth of their length, and never more than 256 positions a step.
        let chunk = (max_len / 8).clamp(64, 256).min(max_len.next_multiple_of(16));
        let len = max_len.next_multiple_of(chunk) as i64;
        let shape = [slots as i64, config.num_key_value_heads, len, config.head_dim];
        let zeros = || {
            (0..config.num_hidden_layers)
                .map(|_| Ok(Tensor::f_zeros(shape, (kind, device))?))
                .collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            keys: zeros()?,
            values: zeros()?,
            slots: slots as i64,
            len,
            chunk: chunk as i64,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            device,
        })
    }

    /// Stores a prompt pack's keys and values, [tokens, kv heads, head_dim] in the layout's order; row r of the batch goes to slot `first + r`.
    pub(crate) fn store(
        &mut self,
        block: usize,
        layout: &Layout,
        first: usize,
        key: &Tensor,
        value: &Tensor,
    ) -> Result<()> {
        let mut begun = 0;
        for bucket in &layout.buckets {
            let rows = layout.order.len().min(begun + bucket.rows as usize) - begun;
            if rows == 0 {
                break; // filler
            }
            let slots: Vec<i64> = layout.order[begun..begun + rows].iter().map(|row| (first + row) as i64).collect();
            begun += rows;
            let slots = tensor::indices(&slots, self.device)?;
            for (cache, new) in [(&self.keys[block], key), (&self.values[block], value)] {
                let new = new.f_narrow(0, bucket.offset, bucket.rows * bucket.len)?;
                let new = new.f_view([bucket.rows, bucket.len, self.kv_heads, self.head_dim])?.f_transpose(1, 2)?;
                let _ = cache.f_narrow(2, 0, bucket.len)?.f_index_copy_(0, &slots, &new)?;
            }
        }
        Ok(())
    }

    /// Copies rows to other slots. No slot is both read and written.
    pub(crate) fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        let Some(longest) = moves.iter().map(|step| step.len as i64).max() else {
            return Ok(());
        };
        let from = tensor::indices(&moves.iter().map(|step| step.from as i64).collect::<Vec<_>>(), self.device)?;
        let to = tensor::indices(&moves.iter().map(|step| step.to as i64).collect::<Vec<_>>(), self.device)?;
        for cache in self.keys.iter().chain(&self.values) {
            let mut used = cache.f_narrow(2, 0, longest)?;
            let moved = used.f_index_select(0, &from)?;
            let _ = used.f_index_copy_(0, &to, &moved)?;
        }
        Ok(())
    }

    /// Prepares a step in which slot r writes position `positions[r]` and sees everything up to it.
    pub(crate) fn prepare(&self, positions: &[i64]) -> Result<Step> {
        self.step(None, positions, positions.len())
    }

    /// Prepares a step over several positions of the row in one slot: each is written, and sees everything up to itself. Rows beyond the first
    /// `kept` are filler, which is not written.
    pub(crate) fn prepare_in(&self, slot: usize, positions: &[i64], kept: usize) -> Result<Step> {
        self.step(Some(slot as i64), positions, kept)
    }

    fn step(&self, slot: Option<i64>, positions: &[i64], kept: usize) -> Result<Step> {
        let rows = positions.len() as i64;
        let longest = positions.iter().max().copied().unwrap_or(0) + 1;
        let chunks = (longest + self.chunk - 1) / self.chunk;
        let target = |(row, position): (i64, i64)| {
            let first = slot.unwrap_or(row) * self.kv_heads;
            (first..first + self.kv_heads).map(move |head| head * self.len + position)
        };
        let targets: Vec<i64> = (0..).zip(positions[..kept].iter().copied()).flat_map(target).collect();
        let width = (chunks * self.chunk) as usize;
        let mut mask = vec![f32::NEG_INFINITY; positions.len() * width];
        for (row, &position) in mask.chunks_exact_mut(width).zip(positions) {
            row[..=position as usize].fill(0.0);
        }
        Ok(Step {
            rows,
            slot,
            chunks,
            targets: tensor::indices(&targets, self.device)?,
            mask: Tensor::f_from_slice(&mask)?.f_view([rows, 1, 1, width as i64])?.f_to(self.device)?,
        })
    }

    /// Stores one new position a row and attends over all: query [rows, heads, head_dim], key and value [rows, kv heads, head_dim];
    /// returns [rows, heads * head_dim].
    pub(crate) fn attend(
        &mut self,
        block: usize,
        step: &Step,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
    ) -> Result<Tensor> {
        let flat = [self.slots * self.kv_heads * self.len, self.head_dim];
        for (cache, new) in [(&self.keys[block], key), (&self.values[block], value)] {
            let new = new.f_reshape([-1, self.head_dim])?.f_narrow(0, 0, step.targets.size()[0])?;
            let _ = cache.f_view(flat)?.f_index_copy_(0, &step.targets, &new)?;
        }
        let batch = step.rows * self.kv_heads;
        let chunk = |cache: &Tensor, number: i64| -> Result<Tensor> {
            let part = cache.f_narrow(2, number * self.chunk, self.chunk)?;
            // Positions of one row look at copies of what they share: a product then has the shape that it has with a slot for each.
            let part = match step.slot {
                None => part.f_narrow(0, 0, step.rows)?,
                Some(slot) => part.f_narrow(0, slot, 1)?.f_expand([step.rows, -1, -1, -1], false)?,
            };
            Ok(part.f_reshape([batch, self.chunk, self.head_dim])?)
        };
        let query = query.f_reshape([batch, -1, self.head_dim])?;
        let shared = query.size()[1];
        let mut scores = Vec::with_capacity(step.chunks as usize);
        for number in 0..step.chunks {
            scores.push(query.f_bmm(&chunk(&self.keys[block], number)?.f_transpose(1, 2)?)?);
        }
        let scores = if scores.len() == 1 { scores.remove(0) } else { Tensor::f_cat(&scores, -1)? };
        let scale = (self.head_dim as f64).powf(-0.5);
        let scores = scores
            .f_view([step.rows, self.kv_heads, shared, -1])?
            .f_to_kind(Kind::Float)?
            .f_mul_scalar_(scale)?
            .f_add_(&step.mask)?;
        let weights = scores.f_softmax(-1, Kind::Float)?.f_to_kind(query.kind())?.f_view([batch, shared, -1])?;
        let mut seen: Option<Tensor> = None;
        for number in 0..step.chunks {
            let part =
                weights.f_narrow(2, number * self.chunk, self.chunk)?.f_bmm(&chunk(&self.values[block], number)?)?;
            seen = Some(match seen {
                Some(seen) => seen.f_add(&part)?,
                None => part,
            });
        }
        Ok(seen.expect("a step has at least one chunk").f_view([step.rows, -1])?)
    }
}
