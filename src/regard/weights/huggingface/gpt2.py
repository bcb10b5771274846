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
    ConfigRow,
    Family,
    TensorMap,
    TensorRow,
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
        ConfigRow("vocabulary", "vocab_size", 50257),
        ConfigRow("width", "n_embd", 768),
        ConfigRow("depth", "n_layer", 12),
        ConfigRow("attention.heads", "n_head", 12),
        ConfigRow("attention.scale", "scale_attn_weights", True, SCALE),
        ConfigRow("attention.dropout", "attn_pdrop", 0.1),
        ConfigRow("ffn.hidden", "n_inner", None),
        ConfigRow("ffn.activation", "activation_function", "gelu_new", ACTIVATION),
        ConfigRow("norm.eps", "layer_norm_epsilon", 1e-5),
        ConfigRow("dropout", "resid_pdrop", 0.1, also="embd_pdrop"),
        ConfigRow("position.length", "n_positions", 1024),
        ConfigRow("tied", "tie_word_embeddings", True),
        ConfigRow("initial.deviation", "initializer_range", 0.02),
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
        TensorRow("embedding.tokens", "transformer.wte"),
        TensorRow("embedding.position", "transformer.wpe"),
        TensorRow(tuple(f"decoder.{{i}}.attention.{part}" for part in "qkv"), f"{LAYER}.attn.c_attn", JOINED),
        TensorRow("decoder.{i}.attention.out", f"{LAYER}.attn.c_proj", TRANSPOSED),
        TensorRow("decoder.{i}.attention_residual.norm", f"{LAYER}.ln_1"),
        TensorRow("decoder.{i}.ffn.up", f"{LAYER}.mlp.c_fc", TRANSPOSED),
        TensorRow("decoder.{i}.ffn.down", f"{LAYER}.mlp.c_proj", TRANSPOSED),
        TensorRow("decoder.{i}.ffn_residual.norm", f"{LAYER}.ln_2"),
        TensorRow("decoder.norm", "transformer.ln_f"),
        TensorRow("output", "lm_head"),
    )

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"tied": True} if config.architecture(self.architectures) == self.base else {}

    def add_ties(self, mapping: TensorMap, settings: Decoder, config: Config) -> None:
        if settings.tied:
            mapping.copies = {"lm_head.weight": "transformer.wte.weight"}
