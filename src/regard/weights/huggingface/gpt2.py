"""GPT-2 (Radford et al. 2019). Its weights are [in, out]; query, key and value are one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from regard.models.settings import Decoder
from regard.weights.huggingface import tables
from regard.weights.huggingface.tables import ACTIVATION, SAME, Codec, Config, Family, Names, Row, under

LAYER = "transformer.h.{i}"
SCALE = Codec(lambda scaled: None if tables.codec_for(True).read(scaled) else 1.0, lambda scale: scale != 1.0)
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
        Row("vocabulary", "vocab_size", 50257),
        Row("width", "n_embd", 768),
        Row("depth", "n_layer", 12),
        Row("attention.heads", "n_head", 12),
        Row("attention.scale", "scale_attn_weights", True, SCALE),
        Row("attention.dropout", "attn_pdrop", 0.1),
        Row("ffn.hidden", "n_inner", None),
        Row("ffn.activation", "activation_function", "gelu_new", ACTIVATION),
        Row("norm.eps", "layer_norm_epsilon", 1e-5),
        Row("dropout", "resid_pdrop", 0.1, also="embd_pdrop"),
        Row("position.length", "n_positions", 1024),
        Row("tied", "tie_word_embeddings", True),
        Row("initial.deviation", "initializer_range", 0.02),
    )
    constants: ClassVar = {"norm_place": "pre", "position.kind": "learned", "initial.scaled_residual": True}
    required: ClassVar = {"scale_attn_by_inverse_layer_idx": False}
    written: ClassVar = {"bos_token_id": None, "eos_token_id": None}
    names: ClassVar[Names] = {
        **under("embedding", "transformer", tokens="wte", position="wpe"),
        **under("decoder.{i}.attention", f"{LAYER}.attn", tables.JOINED, q="c_attn", k="c_attn", v="c_attn"),
        **under("decoder.{i}.attention", f"{LAYER}.attn", tables.TRANSPOSED, out="c_proj"),
        **under("decoder.{i}.attention_residual", LAYER, norm="ln_1"),
        **under("decoder.{i}.ffn", f"{LAYER}.mlp", tables.TRANSPOSED, up="c_fc", down="c_proj"),
        **under("decoder.{i}.ffn_residual", LAYER, norm="ln_2"),
        "decoder.norm": ("transformer.ln_f", SAME),
        "output": ("lm_head", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"tied": True} if config.architecture(self.architectures) == self.base else {}
