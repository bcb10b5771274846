"""Gemma 1 to 3, text only (Gemma Team 2024, 2024, 2025): LLaMA with larger heads, other norms and limited scores."""

from __future__ import annotations

from typing import Any, ClassVar

from regard.blocks.settings import Rotary
from regard.weights.huggingface import tables
from regard.weights.huggingface.llama import FULL, LAYER, QK_NORM, WINDOW, Llama, Windows
from regard.weights.huggingface.tables import ACTIVATION, Codec, Config, Row, under, varied

NUMBER = tables.codec_for(1.0)
TANH = Codec(lambda name: "gelu-tanh" if name == "gelu" else ACTIVATION.read(name), ACTIVATION.write)
"""Files of Gemma 1 that state gelu mean its approximation."""
SCALE = Codec(lambda scalar: NUMBER.read(scalar) ** -0.5, lambda scale: round(scale**-2))
SIZES: dict[str, Any] = {"vocab_size": 256000, "head_dim": 256, "tie_word_embeddings": True}


class Gemma(Llama):
    """The type of Gemma 1."""

    model_type = "gemma"
    architectures = ("GemmaForCausalLM", "GemmaModel")
    base = "GemmaModel"
    fields = (
        *varied(
            Llama.fields,
            ("hidden_act", "mlp_bias"),
            **SIZES,
            hidden_size=3072,
            intermediate_size=24576,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=16,
        ),
        Row("ffn.activation", "hidden_act", "gelu_pytorch_tanh", TANH),
    )
    constants: ClassVar = Llama.constants | {"ffn.bias": False, "norm.unit_offset": True, "embedding_scale": True}
    required: ClassVar = {"use_bidirectional_attention": False}


class Gemma2(Windows):
    """The type of Gemma 2: norms before and after each sublayer, limited scores and logits, windows."""

    model_type = "gemma2"
    architectures = ("Gemma2ForCausalLM", "Gemma2Model")
    base = "Gemma2Model"
    fields = (
        *varied(
            Windows.fields,
            ("hidden_act",),
            **SIZES,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=26,
            num_attention_heads=8,
            num_key_value_heads=4,
        ),
        Row("ffn.activation", "hidden_activation", "gelu_pytorch_tanh", ACTIVATION),
        Row("attention.scale", "query_pre_attn_scalar", 256, SCALE),
        Row("attention.soft_cap", "attn_logit_softcapping", 50.0, NUMBER, optional=True),
        Row("output_soft_cap", "final_logit_softcapping", 30.0, NUMBER, optional=True),
    )
    constants: ClassVar = Gemma.constants | {"norm_place": "sandwich"}
    required: ClassVar = Gemma.required
    names: ClassVar = Windows.names | {
        **under("decoder.{i}.attention_residual", LAYER, norm="input_layernorm", after="post_attention_layernorm"),
        **under(
            "decoder.{i}.ffn_residual", LAYER, norm="pre_feedforward_layernorm", after="post_feedforward_layernorm"
        ),
    }
    switch = None
    period: ClassVar[int] = 2
    """Every layer of this number has no window."""

    def usual_kinds(self, config: Config) -> list[str]:
        period = config.read("sliding_window_pattern", self.period)
        return [WINDOW if (i + 1) % period else FULL for i in range(config.read("num_hidden_layers", 26))]


class Gemma3(Gemma2):
    """The text part of Gemma 3: norms of queries and keys, and another rotation in layers with a window."""

    model_type = "gemma3_text"
    architectures = ("Gemma3ForCausalLM", "Gemma3TextModel")
    base = "Gemma3TextModel"
    fields = varied(Gemma2.fields, vocab_size=262208, attn_logit_softcapping=None, final_logit_softcapping=None)
    names: ClassVar = Gemma2.names | QK_NORM
    qk_norm = True
    period = 6
    base_default = 1_000_000.0

    def read_rotation(self, config: Config) -> dict[str, Any]:
        """`rope_parameters` has a table for each type of layers; older files have `rope_local_base_freq`."""
        stated = config.values.get("rope_parameters") or {}
        values = {key: value for key, value in config.values.items() if key != "rope_parameters"}
        if not isinstance(stated, dict):
            raise config.error("rope_parameters", "must be an object; correct it")
        full = super().read_rotation(Config(values | {"rope_parameters": stated.get(FULL)}, config.source))
        window = Config(stated.get(WINDOW) or {}, f"{config.source}: rope_parameters.{WINDOW}")
        window.require({"rope_type": "default"})
        base = window.read("rope_theta", config.read("rope_local_base_freq", 10_000.0))
        return full | {"position.window_base": base}

    def write_rotation(self, position: Rotary) -> dict[str, Any]:
        values = super().write_rotation(position)
        local = position.base if position.window_base is None else position.window_base
        window = {"rope_type": "default", "rope_theta": local}
        return values | {
            "rope_local_base_freq": local,
            "rope_parameters": {FULL: values["rope_parameters"], WINDOW: window},
        }
