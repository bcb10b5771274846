"""ModernBERT (Warner et al. 2024): rotary positions, gated feed-forward, windows in two of three layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.blocks.settings import Rotary
from regard.models.settings import Classification, Encoder, Masked
from regard.weights.huggingface.bert import Bert
from regard.weights.huggingface.tables import ACTIVATION, SAME, Config, Form, Names, Row, under

LAYER = "model.layers.{i}"
LENGTH = 8192
"""The maximum length that is written. Rotary positions have none."""
TYPES = {"window": "sliding_attention", "full": "full_attention"}
BASES = {"position.base": ("full_attention", "global_rope_theta", 160_000.0)}
BASES["position.window_base"] = ("sliding_attention", "local_rope_theta", 10_000.0)


def _rows(count: int) -> Form:
    """Several of our matrices in one of theirs, one below the other."""
    return Form(torch.cat, lambda tensor: tensor.chunk(count))


class ModernBert(Bert):
    """The type of ModernBERT models. Its heads for tags and answers have a layer of their own, which ours have not."""

    model_type = "modernbert"
    heads: ClassVar[Mapping[str, set[str]]] = {
        "ModernBertModel": set(),
        "ModernBertForMaskedLM": {"masked"},
        "ModernBertForSequenceClassification": {"classification"},
    }
    architectures = tuple(heads)
    base, prefix = "ModernBertModel", "model."
    head_names = ("head.", "decoder.", "classifier.")
    masked = output = "decoder"
    fields = (
        Row("vocabulary", "vocab_size", 50368),
        Row("width", "hidden_size", 768),
        Row("depth", "num_hidden_layers", 22),
        Row("attention.heads", "num_attention_heads", 12),
        Row("attention.bias", "attention_bias", False),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("ffn.hidden", "intermediate_size", 1152),
        Row("ffn.activation", "hidden_activation", "gelu", ACTIVATION),
        Row("ffn.bias", "mlp_bias", False),
        Row("ffn.dropout", "mlp_dropout", 0.0),
        Row("norm.eps", "norm_eps", 1e-5),
        Row("norm.bias", "norm_bias", False),
        Row("dropout", "embedding_dropout", 0.0),
        Row("initial.deviation", "initializer_range", 0.02),
    )
    constants: ClassVar = {
        "ffn.kind": "gated",
        "norm_place": "pre",
        "embedding_norm": True,
        "first_norm": False,
        "position.kind": "rotary",
    }
    required: ClassVar = {"classifier_bias": False, "decoder_bias": True, "classifier_activation": "gelu"}
    written: ClassVar = {
        "max_position_embeddings": LENGTH,
        **{f"{name}_token_id": None for name in ("pad", "bos", "eos", "cls", "sep")},
    }
    names: ClassVar[Names] = {
        **under("embedding", "model.embeddings", tokens="tok_embeddings", norm="norm"),
        **under("encoder.{i}.attention", f"{LAYER}.attn", _rows(3), q="Wqkv", k="Wqkv", v="Wqkv"),
        "encoder.{i}.attention.out": (f"{LAYER}.attn.Wo", SAME),
        "encoder.{i}.attention_residual.norm": (f"{LAYER}.attn_norm", SAME),
        **under("encoder.{i}.ffn", f"{LAYER}.mlp", _rows(2), gate="Wi", up="Wi"),
        "encoder.{i}.ffn.down": (f"{LAYER}.mlp.Wo", SAME),
        "encoder.{i}.ffn_residual.norm": (f"{LAYER}.mlp_norm", SAME),
        "encoder.norm": ("model.final_norm", SAME),
        **under("heads.masked", "head", dense="dense", norm="norm"),
        "heads.masked.output": ("decoder", SAME),
        **under("heads.classification", "head", pool="dense", norm="norm"),
        "heads.classification.output": ("classifier", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        every = config.read("global_attn_every_n_layers", 3)
        depth = config.read("num_hidden_layers", 22)
        types = config.values.get("layer_types") or [TYPES["window" if i % every else "full"] for i in range(depth)]
        if not isinstance(types, list) or len(types) != depth or not {*types} <= {*TYPES.values()}:
            raise config.error("layer_types", f"must name one of {', '.join(TYPES.values())} for each layer")
        reach = {theirs: ours for ours, theirs in TYPES.items()}
        found: dict[str, Any] = _windows([reach[each] for each in types], config.read("local_attention", 128) // 2 + 1)
        parameters = config.values.get("rope_parameters") or {}
        for ours, (kind, old, default) in BASES.items():
            rope = Config(parameters.get(kind) or {}, f"{config.source}: rope_parameters")
            rope.require({"rope_type": "default"})
            found[ours] = rope.read("rope_theta", config.read(old, default))
        if found["attention.window"] is None or found["position.window_base"] == found["position.base"]:
            found["position.window_base"] = None
        tied, dropout = config.read("tie_word_embeddings", True), config.read("classifier_dropout", 0.0)
        pooling = "mean" if config.values.get("classifier_pooling") == "mean" else "class"
        layer = {"dense": True, "activation": "gelu", "norm": True, "pooling": pooling}
        heads: dict[str, dict[str, Any]] = {
            "masked": {"kind": "masked", "tied": tied, "bias": False},
            "classification": {"kind": "classification", **layer, "classes": config.labels(), "dropout": dropout},
        }
        kinds = self.heads[config.architecture(self.architectures)]
        return {**found, "heads": {kind: head for kind, head in heads.items() if kind in kinds}}

    def write_rest(self, settings: Encoder) -> dict[str, Any]:
        if not isinstance(settings.position, Rotary):
            raise self.cannot(f"position is {settings.position.kind}, only rotary is supported")
        attention, position = settings.attention, settings.position
        config: dict[str, Any] = {
            "local_attention": 2 * (attention.window or 1) - 2,
            "layer_types": [
                TYPES["full" if window is None else "window"] for window in attention.windows(settings.depth)
            ],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": position.base},
                "sliding_attention": {"rope_type": "default", "rope_theta": position.window_base or position.base},
            },
        }
        for head in settings.heads.values():
            if isinstance(head, Masked):
                config["tie_word_embeddings"] = head.tied
            if isinstance(head, Classification):
                pooling = "mean" if head.pooling == "mean" else "cls"
                config |= {"classifier_dropout": head.dropout, "classifier_pooling": pooling}
        return config


def _windows(layers: list[str], window: int) -> dict[str, Any]:
    """Our settings for layers with a window and without."""
    period = next(n for n in range(1, len(layers) + 1) if all(layers[i] == layers[i % n] for i in range(len(layers))))
    mixed = {*layers} == {"window", "full"}
    return {
        "attention.window": window if "window" in layers else None,
        "attention.pattern": tuple(layers[:period]) if mixed else None,
    }
