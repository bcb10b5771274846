"""LLaMA (Touvron et al. 2023) and the many models of its shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from regard.blocks.settings import Llama3Scaling, Rotary, YarnScaling
from regard.models.settings import Decoder
from regard.weights.huggingface.tables import ACTIVATION, SAME, Config, Family, Names, Row, under

LENGTH = 2048
"""The maximum length that is written. Rotary positions have none."""
LAYER = "model.layers.{i}"
SCALINGS = {
    "linear": (("factor", "factor", None),),
    "llama3": (
        ("factor", "factor", None),
        ("low_frequency_factor", "low_freq_factor", None),
        ("high_frequency_factor", "high_freq_factor", None),
    ),
    "yarn": (("factor", "factor", None), ("beta_fast", "beta_fast", 32.0), ("beta_slow", "beta_slow", 1.0)),
}
"""Numbers of each kind of scaling: ours, theirs, default (None: required)."""


class Llama(Family):
    """The type of LLaMA models."""

    model_type = "llama"
    settings = Decoder
    architectures = ("LlamaForCausalLM", "LlamaModel")
    base = "LlamaModel"
    prefix = "model."
    head_names = ("lm_head.",)
    ignored = (r"rotary_emb\.inv_freq$",)
    from_tensors = frozenset({"tied"})

    fields = (
        Row("vocabulary", "vocab_size", 32000),
        Row("width", "hidden_size", 4096),
        Row("depth", "num_hidden_layers", 32),
        Row("attention.heads", "num_attention_heads", 32),
        Row("attention.head_size", "head_dim", None),
        Row("attention.kv_heads", "num_key_value_heads", None),
        Row("attention.bias", "attention_bias", False),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("ffn.hidden", "intermediate_size", 11008),
        Row("ffn.activation", "hidden_act", "silu", ACTIVATION),
        Row("ffn.bias", "mlp_bias", False),
        Row("norm.eps", "rms_norm_eps", 1e-6),
        Row("tied", "tie_word_embeddings", False),
        Row("initial.deviation", "initializer_range", 0.02),
    )
    constants: ClassVar = {
        "ffn.kind": "gated",
        "norm.kind": "rms",
        "norm_place": "pre",
        "dropout": 0.0,
        "position.kind": "rotary",
        "position.order": "halves",
    }
    required: ClassVar = {"partial_rotary_factor": 1.0}
    written: ClassVar = {"bos_token_id": None, "eos_token_id": None}
    names: ClassVar[Names] = {
        "embedding.tokens": ("model.embed_tokens", SAME),
        **under("decoder.{i}.attention", f"{LAYER}.self_attn", q="q_proj", k="k_proj", v="v_proj", out="o_proj"),
        **under("decoder.{i}.attention_residual", LAYER, norm="input_layernorm"),
        **under("decoder.{i}.ffn", f"{LAYER}.mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        **under("decoder.{i}.ffn_residual", LAYER, norm="post_attention_layernorm"),
        "decoder.norm": ("model.norm", SAME),
        "output": ("lm_head", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the rotation: `rope_parameters` since version 5, `rope_theta` and `rope_scaling` before."""
        key = "rope_parameters" if config.values.get("rope_parameters") else "rope_scaling"
        values = config.values.get(key) or {}
        if not isinstance(values, dict):
            raise config.error(key, "must be an object; correct it")
        rope = Config(values, f"{config.source}: {key}")
        rope.require({"partial_rotary_factor": 1.0, "truncate": True})
        rest: dict[str, Any] = {"position.base": rope.read("rope_theta", config.read("rope_theta", 10_000.0))}
        if scaling := _read_scaling(config, rope):
            rest["position.scaling"] = scaling
        if config.architecture(self.architectures) == self.base:
            rest["tied"] = "lm_head.weight" not in tensors
        return rest

    def write_rest(self, settings: Decoder) -> dict[str, Any]:
        if not isinstance(settings.position, Rotary):
            return {}
        scaling = _write_scaling(settings.position)
        original = scaling.get("original_max_position_embeddings", LENGTH)
        return {
            "max_position_embeddings": int(original * scaling.get("factor", 1.0)),
            "rope_theta": settings.position.base,
            "rope_parameters": {"rope_theta": settings.position.base, **scaling},
        }


def _read_scaling(config: Config, rope: Config) -> dict[str, Any] | None:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind == "default":
        return None
    if kind not in SCALINGS:
        key = "rope_type" if "rope_type" in rope.values else "type"
        raise rope.error(key, f"is not supported; choose one of default, {', '.join(SCALINGS)}")
    scaling: dict[str, Any] = {"kind": kind}
    for ours, theirs, default in SCALINGS[kind]:
        if default is None and rope.values.get(theirs) is None:
            raise rope.error(theirs, f"is required by rope_type {kind}; give it a value")
        scaling[ours] = rope.read(theirs, default or 1.0)
    if kind != "linear":
        key = "original_max_position_embeddings"
        longest = config.read("max_position_embeddings", LENGTH)
        scaling["original_length"] = config.read(key, None) or rope.read(key, longest)
    if kind == "yarn":  # later variants of YaRN scale attention by other factors than the paper's
        wanted, values = 0.1 * math.log(scaling["factor"]) + 1.0, rope.values
        if not math.isclose(rope.read("attention_factor", wanted), wanted, rel_tol=1e-6):
            raise rope.error("attention_factor", f"is not supported, only {wanted:.6f} is with this factor")
        if values.get("mscale") and values.get("mscale_all_dim") and values.get("attention_factor") is None:
            raise rope.error("mscale", "with mscale_all_dim is not supported; convert the model without it")
    return scaling


def _write_scaling(position: Rotary) -> dict[str, Any]:
    scaling = position.scaling
    if scaling is None or scaling.kind not in SCALINGS:
        return {"rope_type": "default"}
    values = {theirs: getattr(scaling, ours) for ours, theirs, _ in SCALINGS[scaling.kind]}
    if isinstance(scaling, Llama3Scaling | YarnScaling):
        values["original_max_position_embeddings"] = scaling.original_length
    return {"rope_type": scaling.kind, **values}
