"""ViT (Dosovitskiy et al. 2021), DeiT (Touvron et al. 2021), DINOv2 (Oquab et al. 2024), CLIP's vision tower, timm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.models.settings import Classification, Vision
from regard.weights.huggingface import tables
from regard.weights.huggingface.tables import ACTIVATION, SAME, Codec, Config, Family, Form, Names, Row, under, varied

CLASSIFIER = "ViTForImageClassification"
CLIP_LAYER = "vision_model.encoder.layers.{i}"
HEADS = {"base_patch16_gap": 16, "tiny": 3, "small": 6, "medium": 8, "base": 12, "large": 16, "huge": 16, "giant": 16}
"""Heads of timm's models by their names; others state them."""
LAYER, DINO_LAYER = "vit.encoder.layer.{i}", "dinov2.encoder.layer.{i}"


def _read_pair(value: Any) -> tuple[int, int]:
    sizes = [value, value] if isinstance(value, int) else value
    if not isinstance(sizes, list | tuple) or len(sizes) != 2 or not all(isinstance(size, int) for size in sizes):
        raise ValueError("must be one integer or two; correct it")
    return sizes[0], sizes[1]


def _read_numbers(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(each, int | float) for each in value):
        raise ValueError("must be a list of numbers; correct it")
    return tuple(map(float, value)) if len({*value}) > 1 else (float(value[0]),)


PAIR = Codec(_read_pair, lambda size: size[0] if size[0] == size[1] else list(size))
NUMBERS = Codec(_read_numbers, list)
SCALING = (Row("mean", "image_mean", [0.5], NUMBERS), Row("deviation", "image_std", [0.5], NUMBERS))
"""Of pixels; in a directory they are in the file of the preprocessor."""


def _positions(registers: int) -> Form:
    """The positions of the patches [P, D] and of the class token [D], which they keep as [1, 1 + registers + P, D]."""

    def write(own: tuple[Tensor, ...]) -> Tensor:
        patches, first = own
        return torch.cat([first[None], first.new_zeros(registers, len(first)), patches])[None]

    return Form(write, lambda tensor: (tensor[0, 1 + registers :], tensor[0, 0]))


POSITIONS = _positions(0)
ROWS = Form(lambda own: torch.cat([own[1][None], own[0]]), lambda tensor: (tensor[1:], tensor[0]))
"""The same as [1 + P, D]."""


def _add_positions(tensors: dict[str, Tensor], table: str, tokens: str) -> dict[str, Tensor]:
    """Positions of learned tokens after the class token, added to those tokens: ours have none."""
    if tokens not in tensors or table not in tensors:
        return tensors
    positions, learned = tensors[table].clone(), tensors[tokens]
    rows = slice(1, 1 + learned.shape[1])
    learned = learned + positions[:, rows]
    positions[:, rows] = 0
    return {**tensors, table: positions, tokens: learned}


class Images(Family):
    """What all have in common."""

    settings = Vision
    head_names: ClassVar[tuple[str, ...]] = ("classifier.",)
    fields: ClassVar[tuple[Row, ...]] = (
        *varied(tables.USUAL, ("vocab_size",)),
        Row("attention.head_size", "head_dim", None),
        Row("attention.bias", "qkv_bias", True),
        Row("attention.dropout", "attention_probs_dropout_prob", 0.0),
        Row("norm.eps", "layer_norm_eps", 1e-12),
        Row("dropout", "hidden_dropout_prob", 0.0),
        Row("image", "image_size", 224, PAIR),
        Row("patch", "patch_size", 16),
        Row("channels", "num_channels", 3),
        *SCALING,
    )
    constants: ClassVar = {"attention.output_bias": True, "norm_place": "pre", "position.kind": "learned-2d"}


class Vit(Images):
    """The type of ViT models."""

    model_type = "vit"
    architectures: ClassVar[tuple[str, ...]] = ("ViTModel", CLASSIFIER)
    base = "ViTModel"
    prefix = "vit."
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
        (r"\.attention\.q_proj\.", ".attention.attention.query."),
        (r"\.attention\.k_proj\.", ".attention.attention.key."),
        (r"\.attention\.v_proj\.", ".attention.attention.value."),
        (r"\.attention\.o_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    )
    from_tensors = frozenset({"heads"})
    required: ClassVar = {"pooler_act": "tanh"}
    names: ClassVar[Names] = {
        "embedding.class_token": ("vit.embeddings.cls_token", tables.leading(2)),
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
        if (architecture := config.architecture(self.architectures)) != self.base:
            distilled = architecture.endswith("WithTeacher")
            heads["classification"] = {"kind": "classification", "classes": config.labels(), "distilled": distilled}
        if f"{self.prefix}pooler.dense.weight" in tensors:
            heads["pooling"] = {"kind": "pooling", "dense": True}
        return {"heads": heads}

    def architecture_for(self, settings: Vision) -> str:
        kinds = sorted(head.kind for head in settings.heads.values())
        if kinds in ([], ["pooling"]):
            return self.base
        if kinds == ["classification"]:
            return CLASSIFIER
        raise self.cannot(f"its heads are {' and '.join(kinds)}, only pooling or classification alone is supported")


class Deit(Vit):
    """The type of DeiT models: a ViT with a distillation token, here the first register."""

    model_type = "deit"
    architectures = ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
    base = "DeiTModel"
    prefix = "deit."
    head_names = ("classifier.", "cls_classifier.", "distillation_classifier.")
    constants: ClassVar = {**Vit.constants, "registers": 1}
    names: ClassVar[Names] = {
        **tables.moved(Vit.names, "vit.", "deit."),
        "embedding.registers": ("deit.embeddings.distillation_token", tables.leading(1)),
        "embedding.position.first": ("deit.embeddings.position_embeddings", _positions(1)),
        "embedding.position.weight": ("deit.embeddings.position_embeddings", _positions(1)),
    }

    def current_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = super().current_names(tensors)
        return _add_positions(found, "deit.embeddings.position_embeddings", "deit.embeddings.distillation_token")

    def names_for(self, settings: Vision) -> Names:
        if not _is_distilled(settings):
            return self.names
        both = {"output": "cls_classifier", "distilled": "distillation_classifier"}
        return {**self.names, **{f"heads.classification.{ours}": (name, SAME) for ours, name in both.items()}}

    def architecture_for(self, settings: Vision) -> str:
        if super().architecture_for(settings) == self.base:
            return self.base
        return self.architectures[2 if _is_distilled(settings) else 1]


def _is_distilled(settings: Vision) -> bool:
    return any(isinstance(head, Classification) and head.distilled for head in settings.heads.values())


def _hidden(size: int, gated: bool) -> int:
    """The hidden size of a feed-forward; a gate takes a third of it."""
    return (size * 2 // 3 + 7) // 8 * 8 if gated else size


class Dinov2(Images):
    """The type of DINOv2 backbones: layer scale, and in the largest a gated feed-forward (SwiGLU)."""

    model_type = "dinov2"
    architectures = ("Dinov2Model",)
    base = "Dinov2Model"
    prefix = "dinov2."
    renamed = Vit.renamed[1:5]
    ignored = (r"embeddings\.mask_token$",)
    fields = (
        *varied(Images.fields, ("intermediate_size", "hidden_act"), layer_norm_eps=1e-6),
        Row("layer_scale", "layerscale_value", 1.0),
        Row("stochastic_depth", "drop_path_rate", 0.0),
    )
    names: ClassVar[Names] = {
        **tables.moved(Vit.names, "vit.", "dinov2."),
        "embedding.registers": ("dinov2.embeddings.register_tokens", tables.leading(1)),
        **under("encoder.{i}.attention_residual", DINO_LAYER, norm="norm1", scale="layer_scale1.lambda1"),
        **under("encoder.{i}.ffn_residual", DINO_LAYER, norm="norm2", scale="layer_scale2.lambda1"),
    }

    def names_for(self, settings: Vision) -> Names:
        mlp, ours = f"{DINO_LAYER}.mlp", "encoder.{i}.ffn"
        if settings.ffn.kind == "dense":
            return self.names | under(ours, mlp, up="fc1", down="fc2")
        joined = under(ours, mlp, tables.equal_parts(2), gate="weights_in", up="weights_in")
        return self.names | joined | under(ours, mlp, down="weights_out")

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        gated = config.read("use_swiglu_ffn", False)
        hidden = _hidden(int(config.read("hidden_size", 768) * config.read("mlp_ratio", 4.0)), gated)
        if gated:
            return {"ffn.kind": "gated", "ffn.hidden": hidden, "ffn.bias": True}
        return {"ffn.hidden": hidden, "ffn.activation": config.read("hidden_act", "gelu", ACTIVATION)}

    def write_rest(self, settings: Vision) -> dict[str, Any]:
        gated = settings.ffn.kind == "gated"
        ratio = next(
            (each for each in range(1, 33) if _hidden(settings.width * each, gated) == settings.ffn_hidden), None
        )
        if ratio is None:
            raise self.cannot(f"ffn.hidden is {settings.ffn_hidden}, only a whole multiple of the width is supported")
        activation = {} if gated else {"hidden_act": ACTIVATION.write(settings.ffn.activation)}
        return {"use_swiglu_ffn": gated, "mlp_ratio": ratio, **activation}

    def architecture_for(self, settings: Vision) -> str:
        if settings.heads:
            raise self.cannot("it has heads, only a backbone without heads is supported")
        return self.base

    def add_ties(self, mapping: tables.TensorMap, settings: Vision, config: Config) -> None:
        shape = (1, settings.width)
        mapping.fixed = {"dinov2.embeddings.mask_token": (shape, lambda: torch.zeros(shape))}


class Dinov2WithRegisters(Dinov2):
    """DINOv2 with registers (Darcet et al. 2024)."""

    model_type = "dinov2_with_registers"
    architectures = ("Dinov2WithRegistersModel",)
    base = "Dinov2WithRegistersModel"
    fields = (*Dinov2.fields, Row("registers", "num_register_tokens", 4))


class Clip(Images):
    """CLIP's vision tower (Radford et al. 2021). Its output is the class token after the last norm."""

    model_type = "clip_vision_model"
    architectures = ("CLIPVisionModel",)
    base = "CLIPVisionModel"
    prefix = "vision_model."
    ignored = (r"position_ids$",)
    fields = (
        *varied(
            Images.fields,
            ("qkv_bias", "attention_probs_dropout_prob", "hidden_dropout_prob", "head_dim"),
            hidden_act="quick_gelu",
            layer_norm_eps=1e-5,
            patch_size=32,
        ),
        Row("attention.dropout", "attention_dropout", 0.0),
    )
    constants: ClassVar = {
        **Images.constants,
        "attention.bias": True,
        "patch_bias": False,
        "embedding_norm": True,
        "dropout": 0.0,
        "heads": {"pooling": {"kind": "pooling"}},
    }
    names: ClassVar[Names] = {
        "embedding.class_token": ("vision_model.embeddings.class_embedding", SAME),
        **dict.fromkeys(
            ("embedding.position.first", "embedding.position.weight"),
            ("vision_model.embeddings.position_embedding.weight", ROWS),
        ),
        "embedding.patches": ("vision_model.embeddings.patch_embedding", SAME),
        "embedding.norm": ("vision_model.pre_layrnorm", SAME),
        **under("encoder.{i}.attention", f"{CLIP_LAYER}.self_attn", q="q_proj", k="k_proj", v="v_proj", out="out_proj"),
        **under("encoder.{i}.attention_residual", CLIP_LAYER, norm="layer_norm1"),
        **under("encoder.{i}.ffn", f"{CLIP_LAYER}.mlp", up="fc1", down="fc2"),
        **under("encoder.{i}.ffn_residual", CLIP_LAYER, norm="layer_norm2"),
        "encoder.norm": ("vision_model.post_layernorm", SAME),
    }


class Timm(Images):
    """The Vision Transformers of timm. Its config has a name and often no sizes, which follow from the tensors."""

    model_type = "timm"
    from_tensors = frozenset({"heads"})
    constants: ClassVar = {**Images.constants, "norm.eps": 1e-6, "ffn.activation": "gelu", "dropout": 0.0}
    fields = ()

    def current_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict(tensors)
        if "cls_token" in found and "pos_embed" in found:
            learned = found.get("reg_token", found.get("dist_token"))
            count, rows = 1 + (0 if learned is None else learned.shape[1]), found["pos_embed"]
            if (
                math.isqrt(rows.shape[1]) ** 2 == rows.shape[1]
                and math.isqrt(rows.shape[1] - count) ** 2 != rows.shape[1] - count
            ):
                found["pos_embed"] = torch.cat([rows.new_zeros(1, count, rows.shape[2]), rows], 1)  # no_embed_class
        return _add_positions(_add_positions(found, "pos_embed", "reg_token"), "pos_embed", "dist_token")

    def names_for(self, settings: Vision) -> Names:
        block, positions = "blocks.{i}", _positions(settings.registers)
        tokens = "dist_token" if _is_distilled(settings) else "reg_token"
        return {
            "embedding.class_token": ("cls_token", tables.leading(2)),
            "embedding.registers": (tokens, tables.leading(1)),
            "embedding.position.first": ("pos_embed", positions),
            "embedding.position.weight": ("pos_embed", positions if settings.class_token else tables.leading(1)),
            "embedding.patches": ("patch_embed.proj", SAME),
            **under("encoder.{i}.attention", f"{block}.attn", tables.equal_parts(3), **dict.fromkeys("qkv", "qkv")),
            **under("encoder.{i}.attention", f"{block}.attn", out="proj"),
            **under("encoder.{i}.attention_residual", block, norm="norm1", scale="ls1.gamma"),
            **under("encoder.{i}.ffn", f"{block}.mlp", up="fc1", down="fc2"),
            **under("encoder.{i}.ffn_residual", block, norm="norm2", scale="ls2.gamma"),
            "encoder.norm": ("norm", SAME),
            "heads.classification.output": ("head", SAME),
            "heads.classification.distilled": ("head_dist", SAME),
        }

    def read_values(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        values, name = config.values, str(config.values.get("architecture"))
        # SigLIP's models of one name differ in their activation.
        plain = name.startswith(("vit_", "deit_", "deit3_")) and "siglip" not in name
        if not plain or any("fc_norm" in key or "q_norm" in key for key in tensors):
            raise config.error("architecture", "is not supported; only plain Vision Transformers (vit_*, deit*) are")
        if "patch_embed.proj.weight" not in tensors:
            raise config.error("architecture", "has no tensor patch_embed.proj.weight; check the file of its weights")
        made = values.get("model_args") or {}
        shown = values.get("pretrained_cfg") or values
        width, channels, patch, _ = tensors["patch_embed.proj.weight"].shape
        heads = made.get("num_heads", next((count for part, count in HEADS.items() if f"_{part}_" in name), None))
        if heads is None:
            raise config.error("architecture", "does not tell the number of heads; add num_heads to model_args")
        hidden = tensors.get("blocks.0.mlp.fc1.bias")
        learned = tensors.get("reg_token", tensors.get("dist_token"))
        classes, pooling = values.get("num_classes", 1000), values.get("global_pool", "token")
        head = {"kind": "classification", "classes": classes, "distilled": "head_dist.weight" in tensors}
        head["pooling"] = {"token": "class", "avg": "mean"}.get(pooling, pooling)
        return {
            "width": width,
            "depth": len({key.split(".")[1] for key in tensors if key.startswith("blocks.")}),
            "attention.heads": heads,
            "attention.bias": "blocks.0.attn.qkv.bias" in tensors,
            "ffn.hidden": None if hidden is None else len(hidden),
            "image": PAIR.read(made.get("img_size") or (shown.get("input_size") or [3, 224, 224])[1:]),
            "patch": patch,
            "channels": channels,
            "registers": 0 if learned is None else learned.shape[1],
            "class_token": "cls_token" in tensors,
            "layer_scale": made.get("init_values") or (1e-5 if "blocks.0.ls1.gamma" in tensors else None),
            "heads": {"classification": head} if classes else {},
            "mean": NUMBERS.read(shown.get("mean", [0.5])),
            "deviation": NUMBERS.read(shown.get("std", [0.5])),
        }

    def write_config(self, settings: Vision, extra: Mapping[str, Any] | None = None) -> Config:
        heads = [head for head in settings.heads.values() if isinstance(head, Classification)]
        name = "deit_base_distilled_patch16_224" if _is_distilled(settings) else "vit_base_patch16_224"
        pooling = "avg" if heads and heads[0].pooling == "mean" else "token"
        made = {
            "img_size": list(settings.image),
            "patch_size": settings.patch,
            "in_chans": settings.channels,
            "embed_dim": settings.width,
            "depth": settings.depth,
            "num_heads": settings.attention.heads,
            "mlp_ratio": settings.ffn_hidden / settings.width,
            "qkv_bias": settings.attention.bias,
        }
        if settings.layer_scale is not None:
            made["init_values"] = settings.layer_scale
        if not _is_distilled(settings):
            learned = {"class_token": settings.class_token, "no_embed_class": not settings.class_token}
            made |= {**learned, "reg_tokens": settings.registers}
        if pooling == "avg":
            made |= {"global_pool": "avg", "fc_norm": False}
        shown = {"mean": list(settings.mean), "std": list(settings.deviation)}
        shown = {key: each * (settings.channels if len(each) == 1 else 1) for key, each in shown.items()}
        sizes = {"input_size": [settings.channels, *settings.image], **shown}
        return Config(
            {
                "architecture": name,
                "architectures": [name],
                "num_classes": heads[0].classes if heads else 0,
                "num_features": settings.width,
                "global_pool": pooling,
                "model_args": made,
                "pretrained_cfg": sizes,
                **({"label_names": [*names.values()]} if (names := (extra or {}).get("id2label")) else {}),
            }
        )


IMAGES = (Vit(), Deit(), Dinov2(), Dinov2WithRegisters(), Clip())
