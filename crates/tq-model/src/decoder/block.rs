//! One decoder block's parameters.

use tch::{Kind, Tensor};

use super::store::Store;
use crate::Result;

/// One block's parameters. Each shares storage with the entry of the same name in [`Decoder`]'s list.
pub(super) struct Block {
    pub(super) input_norm: Tensor,
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) output: Linear,
    pub(super) query_norm: Option<Tensor>,
    pub(super) key_norm: Option<Tensor>,
    pub(super) post_norm: Tensor,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) fused: Option<Fused>,
}

/// Projections that read the same input, as one product each. The separate parameters are views of these.
pub(super) struct Fused {
    pub(super) query_key_value: Linear,
    pub(super) gate_up: Linear,
}

pub(super) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Block {
    /// The parameters of block `layer`; `fused` lays projections of equal input out as one.
    pub(super) fn new(store: &mut Store<'_>, layer: usize, fused: bool) -> Result<Self> {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        let fused = if fused { Some(Fused::new(store, &at)?) } else { None };
        let linear = |store: &mut Store<'_>, part: &str| -> Result<Linear> {
            Ok(Linear {
                weight: store.get(&at(&format!("{part}.weight")))?,
                bias: store.optional(&at(&format!("{part}.bias")))?,
            })
        };
        Ok(Self {
            input_norm: store.get(&at("input_layernorm.weight"))?,
            query: linear(store, "self_attn.q_proj")?,
            key: linear(store, "self_attn.k_proj")?,
            value: linear(store, "self_attn.v_proj")?,
            output: linear(store, "self_attn.o_proj")?,
            query_norm: store.optional(&at("self_attn.q_norm.weight"))?,
            key_norm: store.optional(&at("self_attn.k_norm.weight"))?,
            post_norm: store.get(&at("post_attention_layernorm.weight"))?,
            gate: linear(store, "mlp.gate_proj")?,
            up: linear(store, "mlp.up_proj")?,
            down: linear(store, "mlp.down_proj")?,
            fused,
        })
    }
}

impl Fused {
    fn new(store: &mut Store<'_>, at: &impl Fn(&str) -> String) -> Result<Self> {
        let mut joined = |parts: &[&str], kind: &str| {
            let names: Vec<String> = parts.iter().map(|part| at(&format!("{part}.{kind}"))).collect();
            store.joined(&names)
        };
        let attention = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        let expected = "every block has these projections";
        Ok(Self {
            query_key_value: Linear {
                weight: joined(&attention, "weight")?.expect(expected),
                bias: joined(&attention, "bias")?,
            },
            gate_up: Linear {
                weight: joined(&["mlp.gate_proj", "mlp.up_proj"], "weight")?.expect(expected),
                bias: None,
            },
        })
    }
}

impl Linear {
    pub(super) fn apply(&self, input: &Tensor, kind: Kind) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(|bias| cast(bias, kind)).transpose()?;
        Ok(input.f_linear(&cast(&self.weight, kind)?, bias)?)
    }
}

pub(super) fn cast(tensor: &Tensor, kind: Kind) -> Result<Tensor> {
    if tensor.kind() == kind { Ok(tensor.shallow_clone()) } else { Ok(tensor.f_to_kind(kind)?) }
}
