"""ViT (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.models.settings import Vision
from regard.weights.huggingface.tables import ACTIVATION, SAME, Codec, Config, Family, Form, Names, Row, leading, under

CLASSIFIER = "ViTForImageClassification"
LAYER = "vit.encoder.layer.{i}"


def _read_pair(value: Any) -> tuple[int, int]:
    sizes = [value, value] if isinstance(value, int) else value
    if not isinstance(sizes, list | tuple) or len(sizes) != 2 or not all(isinstance(size, int) for size in sizes):
        raise ValueError("must be one integer or two; correct it")
    return sizes[0], sizes[1]


PAIR = Codec(_read_pair, lambda size: size[0] if size[0] == size[1] else list(size))
POSITIONS = Form(lambda own: torch.cat([own[1][None], own[0]])[None], lambda tensor: (tensor[0, 1:], tensor[0, 0]))
"""The positions of the patches [P, D] and of the class token [D], which they keep as [1, 1 + P, D]."""


class Vit(Family):
    """The type of ViT models."""

    model_type = "vit"
    settings = Vision
    architectures = ("ViTModel", CLASSIFIER)
    base = "ViTModel"
    prefix = "vit."
    head_names = ("classifier.",)
    renamed = (
        (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
        (r"\.attention\.q_proj\.", ".attention.attention.query."),
        (r"\.attention\.k_proj\.", ".attention.attention.key."),
        (r"\.attention\.v_proj\.", ".attention.attention.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    )
    from_tensors = frozenset({"heads"})

    fields = (
        Row("width", "hidden_size", 768),
        Row("depth", "num_hidden_layers", 12),
        Row("attention.heads", "num_attention_heads", 12),
        Row("attention.head_size", "head_dim", None),
        Row("attention.bias", "qkv_bias", True),
        Row("attention.dropout", "attention_probs_dropout_prob", 0.0),
        Row("ffn.hidden", "intermediate_size", 3072),
        Row("ffn.activation", "hidden_act", "gelu", ACTIVATION),
        Row("norm.eps", "layer_norm_eps", 1e-12),
        Row("dropout", "hidden_dropout_prob", 0.0),
        Row("image", "image_size", 224, PAIR),
        Row("patch", "patch_size", 16),
        Row("channels", "num_channels", 3),
        Row("initial.deviation", "initializer_range", 0.02),
    )
    constants: ClassVar = {"attention.output_bias": True, "norm_place": "pre", "position.kind": "learned-2d"}
    required: ClassVar = {"pooler_act": "tanh"}
    names: ClassVar[Names] = {
        "embedding.class_token": ("vit.embeddings.cls_token", leading(2)),
        "embedding.position.first": ("vit.embeddings.position_embeddings", POSITIONS),
        "embedding.position.weight": ("vit.embeddings.position_embeddings", POSITIONS),
        "embedding.patches": ("vit.embeddings.patch_embeddings.projection", SAME),
        **under("encoder.{i}.attention", f"{LAYER}.attention.attention", q="query", k="key", v="value"),
        **under("encoder.{i}.attention", f"{LAYER}.attention.output", out="dense"),
        **under("encoder.{i}.attention_residual", LAYER, norm="layernorm_before"),
        **under("encoder.{i}.ffn", LAYER, up="intermediate.dense", down="output.dense"),
        **under("encoder.{i}.ffn_residual", LAYER, norm="layernorm_after"),
        "encoder.norm": ("vit.layernorm", SAME),
        "heads.classification.output": ("classifier", SAME),
        "heads.pooling.pool": ("vit.pooler.dense", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        config.require({"pooler_output_size": config.read("hidden_size", 768)})
        heads: dict[str, Any] = {}
        if config.architecture(self.architectures) == CLASSIFIER:
            heads["classification"] = {"kind": "classification", "classes": config.labels()}
        if "vit.pooler.dense.weight" in tensors:
            heads["pooling"] = {"kind": "pooling", "dense": True}
        return {"heads": heads}

    def architecture_for(self, settings: Vision) -> str:
        kinds = sorted(head.kind for head in settings.heads.values())
        if kinds in ([], ["pooling"]):
            return self.base
        if kinds == ["classification"]:
            return CLASSIFIER
        raise self.cannot(f"its heads are {' and '.join(kinds)}, only pooling or classification alone is supported")
