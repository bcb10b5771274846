"""GPT-NeoX and Pythia (Black et al. 2022): parallel sublayers; query, key and value of each head are neighbours."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regard.blocks.settings import Body
from regard.weights.huggingface.llama import Llama
from regard.weights.huggingface.tables import ACTIVATION, SAME, Form, Names, Row, Tensors, under

LAYER = "gpt_neox.layers.{i}"


def by_heads(heads: int) -> Form:
    """Query, key and value of the first head, then those of the second."""

    def write(own: Tensors) -> Tensor:
        return torch.stack([each.view(heads, -1, *each.shape[1:]) for each in own], 1).flatten(0, 2)

    def read(tensor: Tensor) -> Tensors:
        three = tensor.view(heads, 3, -1, *tensor.shape[1:]).unbind(1)
        return tuple(each.flatten(0, 1) for each in three)

    return Form(write, read)


class GptNeoX(Llama):
    """The type of GPT-NeoX models. Of LLaMA it has the rotation."""

    model_type = "gpt_neox"
    architectures = ("GPTNeoXForCausalLM", "GPTNeoXModel")
    base = "GPTNeoXModel"
    prefix = "gpt_neox."
    head_names = ("embed_out.",)
    renamed = ((r"^lm_head\.", "embed_out."),)
    ignored = (*Llama.ignored, r"\.attention\.(masked_)?bias$")
    base_key, fraction_key, fraction_default = "rotary_emb_base", "rotary_pct", 0.25

    fields = (
        Row("vocabulary", "vocab_size", 50432),
        Row("width", "hidden_size", 6144),
        Row("depth", "num_hidden_layers", 44),
        Row("attention.heads", "num_attention_heads", 64),
        Row("attention.bias", "attention_bias", True),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("ffn.hidden", "intermediate_size", 24576),
        Row("ffn.activation", "hidden_act", "gelu", ACTIVATION),
        Row("norm.eps", "layer_norm_eps", 1e-5),
        Row("dropout", "hidden_dropout", 0.0),
        Row("parallel", "use_parallel_residual", True),
        Row("tied", "tie_word_embeddings", False),
        Row("initial.deviation", "initializer_range", 0.02),
    )
    constants: ClassVar = {"norm_place": "pre", "position.kind": "rotary", "position.order": "halves"}
    names: ClassVar[Names] = {
        "embedding.tokens": ("gpt_neox.embed_in", SAME),
        **under("decoder.{i}.attention", f"{LAYER}.attention", out="dense"),
        **under("decoder.{i}.attention_residual", LAYER, norm="input_layernorm"),
        **under("decoder.{i}.ffn", f"{LAYER}.mlp", up="dense_h_to_4h", down="dense_4h_to_h"),
        **under("decoder.{i}.ffn_residual", LAYER, norm="post_attention_layernorm"),
        "decoder.norm": ("gpt_neox.final_layer_norm", SAME),
        "output": ("embed_out", SAME),
    }

    def names_for(self, settings: Body) -> Names:
        one = dict.fromkeys("qkv", "query_key_value")
        return self.names | under(
            "decoder.{i}.attention", f"{LAYER}.attention", by_heads(settings.attention.heads), **one
        )
