//! Running the blocks: whole rows for scoring, training and prompts; one token a row for generation.

use tch::Tensor;

use super::Decoder;
use super::block::{Block, cast};
use crate::Result;
use crate::batch::{Bucket, Layout};
use crate::rope::Rotation;
use crate::tensor;

/// Sees each block's rotated keys and its values, [tokens, kv heads, head_dim], as the layout orders tokens.
pub(crate) type KeyValueSink<'a> = &'a mut dyn FnMut(usize, &Tensor, &Tensor) -> Result<()>;

impl Decoder {
    /// Final hidden states [tokens, hidden] of a layout, after the last norm, in the compute type. Gradients flow unless they are off.
    pub(crate) fn hidden(&self, layout: &Layout, mut sink: Option<KeyValueSink<'_>>) -> Result<Tensor> {
        let kind = self.compute_kind();
        let device = self.placement.device;
        let tokens = layout.tokens();
        let heads = |flat: Tensor| -> Result<Tensor> { Ok(flat.f_view([tokens, -1, self.config.head_dim])?) };
        let rotation = self.rope.at(&tensor::indices(&layout.positions, device)?, layout.longest)?;
        let mut stream = self.embed(&tensor::indices(&layout.ids, device)?)?;
        for (number, block) in self.blocks.iter().enumerate() {
            let input = self.rms_norm(&stream, &block.input_norm)?;
            let query = heads(block.query.apply(&input, kind)?)?;
            let key = heads(block.key.apply(&input, kind)?)?;
            let value = heads(block.value.apply(&input, kind)?)?;
            let (query, key) = self.normed_and_rotated(block, &query, &key, &rotation)?;
            if let Some(sink) = &mut sink {
                sink(number, &key, &value)?;
            }
            let attended = self.attention(&layout.buckets, &query, &key, &value)?;
            stream = stream.f_add(&block.output.apply(&attended, kind)?)?;

            let input = self.rms_norm(&stream, &block.post_norm)?;
            let inside = block.gate.apply(&input, kind)?.f_silu()?.f_mul(&block.up.apply(&input, kind)?)?;
            stream = stream.f_add(&block.down.apply(&inside, kind)?)?;
        }
        self.rms_norm(&stream, &self.norm)
    }

    /// One token a row through every block: `ids` [rows] at `positions` [rows], all below `len`. `attend` stores keys and values and returns
    /// what each row's query sees, [rows, heads * head_dim]. Returns final hidden states [rows, hidden].
    pub(crate) fn decode(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        len: usize,
        mut attend: impl FnMut(usize, &Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let kind = self.compute_kind();
        let rows = ids.size()[0];
        let (queries, keys) = (self.config.num_attention_heads, self.config.num_key_value_heads);
        let rotation = self.rope.at(positions, len)?;
        let mut stream = self.embed(ids)?;
        for (number, block) in self.blocks.iter().enumerate() {
            let fused = block.fused.as_ref().expect("generators make their decoder with fused projections");
            let input = self.rms_norm(&stream, &block.input_norm)?;
            let projected = fused.query_key_value.apply(&input, kind)?.f_view([rows, -1, self.config.head_dim])?;
            let value = projected.f_narrow(1, queries + keys, keys)?;
            let (query, key) = if block.query_norm.is_none() {
                let both = rotation.apply(&projected.f_narrow(1, 0, queries + keys)?)?;
                (both.f_narrow(1, 0, queries)?, both.f_narrow(1, queries, keys)?)
            } else {
                let (query, key) = (projected.f_narrow(1, 0, queries)?, projected.f_narrow(1, queries, keys)?);
                self.normed_and_rotated(block, &query, &key, &rotation)?
            };
            let attended = attend(number, &query, &key, &value)?;
            stream = stream.f_add(&block.output.apply(&attended, kind)?)?;

            let input = self.rms_norm(&stream, &block.post_norm)?;
            let both = fused.gate_up.apply(&input, kind)?;
            let width = self.config.intermediate_size;
            let inside = both.f_narrow(1, 0, width)?.f_silu()?.f_mul(&both.f_narrow(1, width, width)?)?;
            stream = stream.f_add(&block.down.apply(&inside, kind)?)?;
        }
        self.rms_norm(&stream, &self.norm)
    }

    fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        cast(&Tensor::f_embedding(&self.embedding, ids, -1, false, false)?, self.compute_kind())
    }

    fn rms_norm(&self, input: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let width = weight.size();
        Ok(input.f_rms_norm(width, Some(cast(weight, input.kind())?), self.config.rms_norm_eps)?)
    }

    fn normed_and_rotated(
        &self,
        block: &Block,
        query: &Tensor,
        key: &Tensor,
        rotation: &Rotation,
    ) -> Result<(Tensor, Tensor)> {
        let one = |heads: &Tensor, norm: &Option<Tensor>| match norm {
            Some(weight) => rotation.apply(&self.rms_norm(heads, weight)?),
            None => rotation.apply(heads),
        };
        Ok((one(query, &block.query_norm)?, one(key, &block.key_norm)?))
    }

    /// Causal attention of each row over itself: [tokens, heads, head_dim] in, [tokens, heads * head_dim] out.
    fn attention(&self, buckets: &[Bucket], query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let shared = self.config.num_attention_heads / self.config.num_key_value_heads;
        let mut outputs = Vec::with_capacity(buckets.len());
        for bucket in buckets {
            let cut = |tensor: &Tensor| -> Result<Tensor> {
                let part = tensor.f_narrow(0, bucket.offset, bucket.rows * bucket.len)?;
                Ok(part.f_view([bucket.rows, bucket.len, -1, self.config.head_dim])?.f_transpose(1, 2)?)
            };
            let (query, mut key, mut value) = (cut(query)?, cut(key)?, cut(value)?);
            if shared > 1 {
                key = key.f_repeat_interleave_self_int(shared, 1, None)?;
                value = value.f_repeat_interleave_self_int(shared, 1, None)?;
            }
            let seen =
                Tensor::f_scaled_dot_product_attention(&query, &key, &value, None::<&Tensor>, 0.0, true, None, false)?;
            outputs.push(seen.f_transpose(1, 2)?.f_reshape([bucket.rows * bucket.len, -1])?);
        }
        Ok(Tensor::f_cat(&outputs, 0)?)
    }
}
