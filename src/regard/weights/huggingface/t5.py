"""T5 (Raffel et al. 2020), and version 1.1 with a gated feed-forward and a separate output matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.blocks.settings import Gated
from regard.models.settings import EncoderDecoder
from regard.weights.huggingface.tables import ACTIVATION, SAME, Codec, Config, Family, Names, Row, TensorMap, under

SHARED, OUTPUT = "shared.weight", "lm_head.weight"


def _stack(name: str, cross: bool, gated: bool) -> Names:
    """Return the names of one stack: a layer's parts are numbered, with cross-attention in between."""
    layer = f"{name}.block.{{i}}.layer"
    first = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    names: Names = {f"{name}.position.weight": (first, SAME), f"{name}.norm": (f"{name}.final_layer_norm", SAME)}
    parts = [("attention", "SelfAttention"), ("cross", "EncDecAttention")]
    for number, (ours, theirs) in enumerate(parts if cross else parts[:1]):
        names |= under(f"{name}.{{i}}.{ours}", f"{layer}.{number}.{theirs}", q="q", k="k", v="v", out="o")
        names |= under(f"{name}.{{i}}.{ours}_residual", f"{layer}.{number}", norm="layer_norm")
    last = f"{layer}.{2 if cross else 1}"
    names |= under(f"{name}.{{i}}.ffn_residual", last, norm="layer_norm")
    up = "wi_1" if gated else "wi"
    return names | under(f"{name}.{{i}}.ffn", f"{last}.DenseReluDense", gate="wi_0", up=up, down="wo")


def _read_ffn(name: Any) -> dict[str, Any]:
    gated = str(name).startswith("gated-")
    # In transformers, the gate of "gated-gelu" is the approximate one.
    inner = "gelu_new" if name == "gated-gelu" else str(name).removeprefix("gated-")
    return {"ffn.kind": "gated" if gated else "dense", "ffn.activation": ACTIVATION.read(inner)}


class T5(Family):
    """The type of T5 models."""

    model_type = "t5"
    settings = EncoderDecoder
    architectures = ("T5ForConditionalGeneration",)
    ignored = (r"EncDecAttention\.relative_attention_bias\.weight$",)
    from_tensors = frozenset({"tied"})

    fields = (
        Row("vocabulary", "vocab_size", 32128),
        Row("width", "d_model", 512),
        Row("depth", "num_layers", 6),
        Row("decoder_depth", "num_decoder_layers", None),
        Row("attention.heads", "num_heads", 8),
        Row("attention.head_size", "d_kv", 64),
        Row("ffn.hidden", "d_ff", 2048),
        Row("norm.eps", "layer_norm_epsilon", 1e-6),
        Row("dropout", "dropout_rate", 0.1),
        Row("attention.dropout", "dropout_rate", 0.1),
        Row("ffn.dropout", "dropout_rate", 0.1),
        Row("position.buckets", "relative_attention_num_buckets", 32),
        Row("position.longest", "relative_attention_max_distance", 128),
    )
    constants: ClassVar = {
        "attention.bias": False,
        "attention.scale": 1.0,
        "ffn.bias": False,
        "norm.kind": "rms",
        "norm_place": "pre",
        "position.kind": "relative",
        "initial.kind": "xavier",
    }
    required: ClassVar = {"is_encoder_decoder": True}
    written: ClassVar = {"is_encoder_decoder": True}

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        # Version 1.0 scales the decoder's output, 1.1 does not. In old configs, tied weights mean version 1.0.
        scaled = config.read("scale_decoder_outputs", config.read("tie_word_embeddings", True))
        # The present configs do not state whether the output is tied: transformers looks into the file.
        output, shared = tensors.get(OUTPUT), tensors.get(SHARED)
        own_output = output is not None and shared is not None and not torch.equal(output, shared)
        return {
            "output_scale": config.read("d_model", 512) ** -0.5 if scaled else None,
            "tied": ("source", "target") if own_output else ("source", "target", "output"),
            **config.read("feed_forward_proj", "relu", Codec(_read_ffn)),
        }

    def write_rest(self, settings: EncoderDecoder) -> dict[str, Any]:
        if not {"source", "target"} <= set(settings.tied):
            raise self.cannot(f"tied is {list(settings.tied)}, source and target must be tied")
        activation = ACTIVATION.write(settings.ffn.activation)
        if isinstance(settings.ffn, Gated):
            activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
        return {
            "feed_forward_proj": activation,
            "tie_word_embeddings": "output" in settings.tied,
            "scale_decoder_outputs": settings.output_scale is not None,
        }

    def names_for(self, settings: EncoderDecoder) -> Names:
        gated = isinstance(settings.ffn, Gated)
        ends: Names = {"source.tokens": ("shared", SAME), "output": ("lm_head", SAME)}
        return ends | _stack("encoder", cross=False, gated=gated) | _stack("decoder", cross=True, gated=gated)

    def add_ties(self, mapping: TensorMap, settings: EncoderDecoder, config: Config) -> None:
        mapping.copies = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), SHARED)
        if "output" in settings.tied:
            mapping.copies[OUTPUT] = SHARED
