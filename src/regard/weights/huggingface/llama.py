"""LLaMA (Touvron et al. 2023) and the many models of its shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.blocks.settings import (
    Attention,
    Gated,
    LinearScaling,
    Llama3Scaling,
    RmsNorm,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from regard.models.settings import Decoder, Normal
from regard.weights.huggingface.config import EVERYWHERE, Config, activation_name
from regard.weights.huggingface.family import Family
from regard.weights.huggingface.keys import Table, linear, same

LENGTH = 2048
"""What config.json says of the longest sequence, which has no end with us."""


class Llama(Family[Decoder]):
    """`model_type` llama."""

    model_type = "llama"
    settings = Decoder
    architectures = ("LlamaForCausalLM", "LlamaModel")
    base = "LlamaModel"
    prefix = "model."
    heads = ("lm_head.",)
    ignored = (r"rotary_emb\.inv_freq$",)
    told_by_tensors = frozenset({"tied"})

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> Decoder:
        config.require(EVERYWHERE)
        if config.architecture(self.architectures) == self.base:
            tied = "lm_head.weight" not in tensors
        else:
            tied = config.flag("tie_word_embeddings", False)
        return Decoder(
            vocabulary=config.integer("vocab_size", 32000),
            width=config.integer("hidden_size", 4096),
            depth=config.integer("num_hidden_layers", 32),
            attention=Attention(
                heads=config.integer("num_attention_heads", 32),
                head_size=config.optional_integer("head_dim"),
                kv_heads=config.optional_integer("num_key_value_heads"),
                bias=config.flag("attention_bias", False),
                dropout=config.number("attention_dropout", 0.0),
            ),
            ffn=Gated(
                hidden=config.integer("intermediate_size", 11008),
                activation=config.activation("hidden_act", "silu"),
                bias=config.flag("mlp_bias", False),
            ),
            norm=RmsNorm(eps=config.number("rms_norm_eps", 1e-6)),
            norm_place="pre",
            dropout=0.0,
            position=rotary_from(config),
            tied=tied,
            initial=Normal(deviation=config.number("initializer_range", 0.02)),
        )

    def config_from(self, settings: Decoder, architecture: str) -> dict[str, Any]:
        ffn, norm = self.expect(settings.ffn, Gated, "ffn"), self.expect(settings.norm, RmsNorm, "norm")
        position = self.expect(settings.position, Rotary, "position")
        if architecture == self.base and not settings.tied:
            raise self.cannot(f"tied is False, and {self.base} has no output of its own")
        scaling = rotary_config(position)
        original = scaling.get("original_max_position_embeddings", LENGTH)
        return {
            "vocab_size": settings.vocabulary,
            "hidden_size": settings.width,
            "num_hidden_layers": settings.depth,
            "num_attention_heads": settings.attention.heads,
            "num_key_value_heads": settings.kv_heads,
            "head_dim": settings.head_size,
            "intermediate_size": settings.ffn_hidden,
            "hidden_act": activation_name(ffn.activation),
            "attention_bias": settings.attention.bias,
            "mlp_bias": ffn.bias,
            "attention_dropout": settings.attention.dropout,
            "rms_norm_eps": norm.eps,
            "max_position_embeddings": int(original * scaling.get("factor", 1.0)),
            "rope_theta": position.base,
            "rope_parameters": {"rope_theta": position.base, **scaling},
            "tie_word_embeddings": settings.tied,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def architecture_for(self, settings: Decoder) -> str:
        return "LlamaForCausalLM"

    def table(self, settings: Decoder, config: Config) -> Table:
        tokens = "model.embed_tokens.weight"
        bias = settings.attention.bias
        rules = [same("embedding.tokens.weight", tokens), same("decoder.norm.weight", "model.norm.weight")]
        for i in range(settings.depth):
            ours, theirs = f"decoder.{i}", f"model.layers.{i}"
            for x, y in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("out", "o_proj")):
                rules += linear(f"{ours}.attention.{x}", f"{theirs}.self_attn.{y}", bias)
            for x in ("gate", "up", "down"):
                rules += linear(f"{ours}.ffn.{x}", f"{theirs}.mlp.{x}_proj", settings.ffn.bias)
            rules += linear(f"{ours}.attention_residual.norm", f"{theirs}.input_layernorm", bias=False)
            rules += linear(f"{ours}.ffn_residual.norm", f"{theirs}.post_attention_layernorm", bias=False)
        if settings.tied:
            return Table(rules, copies={"lm_head.weight": tokens})
        return Table([*rules, same("output.weight", "lm_head.weight")])


# ------------------------------------------------------------------------------------------------- rotary positions


def rotary_from(config: Config) -> Rotary:
    """The rotation of a config: `rope_parameters` since version 5, `rope_theta` and `rope_scaling` before."""
    key = "rope_parameters" if config.values.get("rope_parameters") else "rope_scaling"
    values = config.values.get(key) or {}
    if not isinstance(values, dict):
        raise config.refuse(key, "must be an object; correct it")
    rope = Config(values, f"{config.source}: {key}")
    rope.require({"partial_rotary_factor": 1.0})
    config.require({"partial_rotary_factor": 1.0})
    base = rope.number("rope_theta", config.number("rope_theta", 10_000.0))
    return Rotary(base=base, order="halves", scaling=_scaling(config, rope))


def _scaling(config: Config, rope: Config) -> RotaryScaling | None:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise rope.refuse(
            "rope_type" if "rope_type" in rope.values else "type",
            "cannot be expressed; known: default, linear, llama3, yarn",
        )
    for needed in ("factor",) if kind != "llama3" else ("factor", "low_freq_factor", "high_freq_factor"):
        if rope.values.get(needed) is None:
            raise rope.refuse(needed, f"is needed by rope_type {kind}; give it a value")
    factor = rope.number("factor", 1.0)
    if kind == "linear":
        return LinearScaling(factor=factor)
    original = config.optional_integer("original_max_position_embeddings") or rope.integer(
        "original_max_position_embeddings", config.integer("max_position_embeddings", LENGTH)
    )
    if kind == "llama3":
        return Llama3Scaling(
            factor=factor,
            low_frequency_factor=rope.number("low_freq_factor", 1.0),
            high_frequency_factor=rope.number("high_freq_factor", 4.0),
            original_length=original,
        )
    return _yarn(rope, factor, original)


def _yarn(rope: Config, factor: float, original: int) -> YarnScaling:
    """YaRN as in its paper; its later variations cannot be expressed."""
    rope.require({"truncate": True})
    sharpening = 0.1 * math.log(factor) + 1.0
    given = rope.number("attention_factor", sharpening)
    if not math.isclose(given, sharpening, rel_tol=1e-6):
        raise rope.refuse("attention_factor", f"cannot be expressed: with factor {factor} it must be {sharpening:.6f}")
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim") and rope.values.get("attention_factor") is None:
        raise rope.refuse("mscale", "with mscale_all_dim cannot be expressed; convert the model without it")
    return YarnScaling(
        factor=factor,
        original_length=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
    )


def rotary_config(position: Rotary) -> dict[str, Any]:
    """`rope_parameters` without the base."""
    match position.scaling:
        case LinearScaling(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case Llama3Scaling() as scaling:
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                "original_max_position_embeddings": scaling.original_length,
            }
        case YarnScaling() as scaling:
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_length,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
            }
        case _:
            return {"rope_type": "default"}
