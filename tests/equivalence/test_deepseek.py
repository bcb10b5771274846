"""Latent attention and experts against the DeepSeek models of transformers, with the same weights: equal logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from family_cases import unsettled
from torch import Tensor
from torch.testing import assert_close

from regard.blocks.settings import Attention, Experts, Latent, RmsNorm, Rotary
from regard.models.build import build
from regard.models.settings import Decoder

SHAPE: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "kv_lora_rank": 7,
    "intermediate_size": 20,
    "moe_intermediate_size": 9,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
V3 = SHAPE | {"q_lora_rank": 8, "n_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
V2 = SHAPE | {"q_lora_rank": None, "n_shared_experts": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.5}
V2 |= {"topk_method": "greedy"}
EXPERTS = {"experts": 6, "active": 2, "hidden": 9, "first_dense": 1, "dense_hidden": 20}
CASES = {
    "deepseek-v3": (
        transformers.DeepseekV3ForCausalLM,
        V3,
        Latent(rank=7, rotary=4, query_rank=8),
        Experts(**EXPERTS, shared=1, scores="sigmoid", scale=2.5, bias_rate=0.001),
    ),
    "deepseek-v2": (
        transformers.DeepseekV2ForCausalLM,
        V2,
        Latent(rank=7, rotary=4),
        Experts(**EXPERTS, shared=2, normalized=False, scale=1.5),
    ),
}


def our_tensors(theirs: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Their tensors under our names: the up-projection of keys and values is split, gates and ups of experts too."""
    found: dict[str, Tensor] = {
        "embedding.tokens.weight": theirs["model.embed_tokens.weight"],
        "decoder.norm.weight": theirs["model.norm.weight"],
        "output.weight": theirs["lm_head.weight"],
    }
    simple = {
        "attention.q": ("self_attn.q_b_proj", "self_attn.q_proj"),
        "attention.q_down": ("self_attn.q_a_proj",),
        "attention.q_down_norm": ("self_attn.q_a_layernorm",),
        "attention.down": ("self_attn.kv_a_proj_with_mqa",),
        "attention.down_norm": ("self_attn.kv_a_layernorm",),
        "attention.out": ("self_attn.o_proj",),
        "attention_residual.norm": ("input_layernorm",),
        "ffn_residual.norm": ("post_attention_layernorm",),
        **{f"ffn.{part}": (f"mlp.{part}_proj",) for part in ("gate", "up", "down")},
        **{f"ffn.shared.{part}": (f"mlp.shared_experts.{part}_proj",) for part in ("gate", "up", "down")},
    }
    for i in range(3):
        for ours, options in simple.items():
            for option in options:
                if f"model.layers.{i}.{option}.weight" in theirs:
                    found[f"decoder.{i}.{ours}.weight"] = theirs[f"model.layers.{i}.{option}.weight"]
        both = theirs[f"model.layers.{i}.self_attn.kv_b_proj.weight"].view(3, 6 + 5, 7)
        found[f"decoder.{i}.attention.k.weight"] = both[:, :6].flatten(0, 1)
        found[f"decoder.{i}.attention.v.weight"] = both[:, 6:].flatten(0, 1)
        if i:
            mlp = f"model.layers.{i}.mlp"
            found[f"decoder.{i}.ffn.gate"], found[f"decoder.{i}.ffn.up"] = theirs[f"{mlp}.experts.gate_up_proj"].chunk(
                2, dim=1
            )
            found[f"decoder.{i}.ffn.down"] = theirs[f"{mlp}.experts.down_proj"]
            found[f"decoder.{i}.ffn.router"] = theirs[f"{mlp}.gate.weight"]
            bias = theirs.get(f"{mlp}.gate.e_score_correction_bias")
            found |= {} if bias is None else {f"decoder.{i}.ffn.bias": bias}
    assert found.keys() == set(names)
    return found


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name: str) -> None:
    kind, config, latent, experts = CASES[name]
    torch.manual_seed(0)
    theirs = unsettled(kind(kind.config_class(**config)).double())
    theirs.set_experts_implementation("eager")  # the others have no float64
    with torch.no_grad():
        for buffer_name, buffer in theirs.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.3)
    settings = Decoder(
        vocabulary=19,
        width=24,
        depth=3,
        attention=Attention(heads=3, head_size=10, value_size=5, bias=False, latent=latent),
        ffn=experts,
        norm=RmsNorm(eps=1e-6),
        norm_place="pre",
        position=Rotary(order="interleaved"),
        tied=False,
    )
    ours = build(settings, dtype=torch.float64).eval()
    ours.load_state_dict(our_tensors(theirs.state_dict(), list(ours.state_dict())))
    tokens = torch.randint(3, 19, (2, 9))
    with torch.no_grad():
        wanted = theirs(tokens).logits
        # Their router and rotations compute in float32.
        assert_close(ours(tokens), wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())
