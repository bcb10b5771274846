"""GPT-2 (Radford et al. 2019). Its weights are [in, out]; query, key and value are one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from regard.models.settings import Decoder
from regard.weights.huggingface.tables import (
    ACTIVATION,
    FLAG,
    JOINED,
    TRANSPOSED,
    Codec,
    Config,
    Family,
    Field,
    Row,
    TensorMap,
)

LAYER = "transformer.h.{i}"
SCALE = Codec(lambda scaled: None if FLAG.read(scaled) else 1.0, lambda scale: scale != 1.0)
"""Whether scores are divided by √head_size."""


class Gpt2(Family):
    """The type of GPT-2 models."""

    model_type = "gpt2"
    settings = Decoder
    architectures = ("GPT2LMHeadModel", "GPT2Model")
    base = "GPT2Model"
    prefix = "transformer."
    head_names = ("lm_head.",)
    ignored = (r"\.attn\.(masked_)?bias$",)

    fields = (
        Field("vocabulary", "vocab_size", 50257),
        Field("width", "n_embd", 768),
        Field("depth", "n_layer", 12),
        Field("attention.heads", "n_head", 12),
        Field("attention.scale", "scale_attn_weights", True, SCALE),
        Field("attention.dropout", "attn_pdrop", 0.1),
        Field("ffn.hidden", "n_inner", None),
        Field("ffn.activation", "activation_function", "gelu_new", ACTIVATION),
        Field("norm.eps", "layer_norm_epsilon", 1e-5),
        Field("dropout", "resid_pdrop", 0.1, also="embd_pdrop"),
        Field("position.length", "n_positions", 1024),
        Field("tied", "tie_word_embeddings", True),
        Field("initial.deviation", "initializer_range", 0.02),
    )
    constants: ClassVar = {
        "ffn.kind": "dense",
        "norm.kind": "layer",
        "norm_place": "pre",
        "position.kind": "learned",
        "initial.kind": "normal",
        "initial.scaled_residual": True,
    }
    required: ClassVar = {"scale_attn_by_inverse_layer_idx": False}
    written: ClassVar = {"bos_token_id": None, "eos_token_id": None}
    tensors = (
        Row("embedding.tokens", "transformer.wte"),
        Row("embedding.position", "transformer.wpe"),
        Row(tuple(f"decoder.{{i}}.attention.{part}" for part in "qkv"), f"{LAYER}.attn.c_attn", JOINED),
        Row("decoder.{i}.attention.out", f"{LAYER}.attn.c_proj", TRANSPOSED),
        Row("decoder.{i}.attention_residual.norm", f"{LAYER}.ln_1"),
        Row("decoder.{i}.ffn.up", f"{LAYER}.mlp.c_fc", TRANSPOSED),
        Row("decoder.{i}.ffn.down", f"{LAYER}.mlp.c_proj", TRANSPOSED),
        Row("decoder.{i}.ffn_residual.norm", f"{LAYER}.ln_2"),
        Row("decoder.norm", "transformer.ln_f"),
        Row("output", "lm_head"),
    )

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"tied": True} if config.architecture(self.architectures) == self.base else {}

    def add_ties(self, mapping: TensorMap, settings: Decoder, config: Config) -> None:
        if settings.tied:
            mapping.copies = {"lm_head.weight": "transformer.wte.weight"}
