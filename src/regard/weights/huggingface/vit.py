"""ViT (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.blocks.settings import Attention, Dense, LayerNorm, Learned2d
from regard.models.settings import Classification, ImageHead, Normal, Pooling, Vision
from regard.weights.huggingface.config import EVERYWHERE, Config, activation_name, labels
from regard.weights.huggingface.family import Family
from regard.weights.huggingface.keys import Table, linear, place_table, with_leading

CLASSIFIER = "ViTForImageClassification"


class Vit(Family[Vision]):
    """`model_type` vit."""

    model_type = "vit"
    settings = Vision
    architectures = ("ViTModel", CLASSIFIER)
    base = "ViTModel"
    prefix = "vit."
    heads = ("classifier.",)
    renamed = (
        (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
        (r"\.attention\.q_proj\.", ".attention.attention.query."),
        (r"\.attention\.k_proj\.", ".attention.attention.key."),
        (r"\.attention\.v_proj\.", ".attention.attention.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    )
    told_by_tensors = frozenset({"heads"})

    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> Vision:
        width = config.integer("hidden_size", 768)
        config.require(EVERYWHERE | {"pooler_act": "tanh", "pooler_output_size": width})
        patch = config.pair("patch_size", 16)
        if patch[0] != patch[1]:
            raise config.refuse("patch_size", "cannot be expressed: patches must be squares; choose another model")
        return Vision(
            width=width,
            depth=config.integer("num_hidden_layers", 12),
            attention=Attention(
                heads=config.integer("num_attention_heads", 12),
                head_size=config.optional_integer("head_dim"),
                bias=config.flag("qkv_bias", True),
                output_bias=True,
                dropout=config.number("attention_probs_dropout_prob", 0.0),
            ),
            ffn=Dense(
                hidden=config.integer("intermediate_size", 3072), activation=config.activation("hidden_act", "gelu")
            ),
            norm=LayerNorm(eps=config.number("layer_norm_eps", 1e-12)),
            norm_place="pre",
            dropout=config.number("hidden_dropout_prob", 0.0),
            image=config.pair("image_size", 224),
            patch=patch[0],
            channels=config.integer("num_channels", 3),
            position=Learned2d(),
            heads=self._heads(config, tensors),
            initial=Normal(deviation=config.number("initializer_range", 0.02)),
        )

    def _heads(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, ImageHead]:
        heads: dict[str, ImageHead] = {}
        if config.architecture(self.architectures) == CLASSIFIER:
            heads["classification"] = Classification(classes=config.labels())
        if "vit.pooler.dense.weight" in tensors:
            heads["pooling"] = Pooling(dense=True)
        return heads

    def config_from(self, settings: Vision, architecture: str) -> dict[str, Any]:
        ffn, norm = self.expect(settings.ffn, Dense, "ffn"), self.expect(settings.norm, LayerNorm, "norm")
        self.expect(settings.position, Learned2d, "position")
        height, width = settings.image
        config: dict[str, Any] = {
            "hidden_size": settings.width,
            "num_hidden_layers": settings.depth,
            "num_attention_heads": settings.attention.heads,
            "intermediate_size": settings.ffn_hidden,
            "hidden_act": activation_name(ffn.activation),
            "hidden_dropout_prob": settings.dropout,
            "attention_probs_dropout_prob": settings.attention.dropout,
            "layer_norm_eps": norm.eps,
            "image_size": height if height == width else [height, width],
            "patch_size": settings.patch,
            "num_channels": settings.channels,
            "qkv_bias": settings.attention.bias,
        }
        if settings.head_size * settings.attention.heads != settings.width:
            config["head_dim"] = settings.head_size
        for head in settings.heads.values():
            if isinstance(head, Classification):
                config |= labels(head.classes)
        return config

    def architecture_for(self, settings: Vision) -> str:
        kinds = sorted(head.kind for head in settings.heads.values())
        if kinds in ([], ["pooling"]):
            return self.base
        if kinds == ["classification"]:
            return CLASSIFIER
        raise self.cannot(f"its heads are {' and '.join(kinds)}, and only pooling or classification alone are known")

    def table(self, settings: Vision, config: Config) -> Table:
        rules = [
            with_leading("embedding.class_token", "vit.embeddings.cls_token", ones=2),
            place_table("embedding.position.first", "embedding.position.weight", "vit.embeddings.position_embeddings"),
            *linear("embedding.patches", "vit.embeddings.patch_embeddings.projection"),
            *linear("encoder.norm", "vit.layernorm"),
        ]
        for i in range(settings.depth):
            ours, theirs = f"encoder.{i}", f"vit.encoder.layer.{i}"
            rules += linear(f"{ours}.attention.q", f"{theirs}.attention.attention.query", settings.attention.bias)
            rules += linear(f"{ours}.attention.k", f"{theirs}.attention.attention.key", settings.attention.bias)
            rules += linear(f"{ours}.attention.v", f"{theirs}.attention.attention.value", settings.attention.bias)
            rules += linear(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
            rules += linear(f"{ours}.attention_residual.norm", f"{theirs}.layernorm_before")
            rules += linear(f"{ours}.ffn.up", f"{theirs}.intermediate.dense")
            rules += linear(f"{ours}.ffn.down", f"{theirs}.output.dense")
            rules += linear(f"{ours}.ffn_residual.norm", f"{theirs}.layernorm_after")
        for name, head in settings.heads.items():
            if isinstance(head, Classification):
                rules += linear(f"heads.{name}.output", "classifier")
            else:
                rules += linear(f"heads.{name}.pool", "vit.pooler.dense")
        return Table(rules)
