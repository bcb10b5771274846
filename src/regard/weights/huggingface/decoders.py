"""Decoders: GPT-2, LLaMA and models of its shape (Mistral, Qwen 2 and 3, Phi-3, OLMo 2, Gemma 1 to 3), GPT-NeoX.

SmolLM is a LLaMA.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.blocks.settings import Body, Llama3Scaling, Rotary, YarnScaling
from regard.models.settings import Decoder
from regard.weights.huggingface import tables
from regard.weights.huggingface.tables import ACTIVATION, SAME, Codec, Config, Family, Names, Row, under, varied

LENGTH = 2048
"""The maximum length that is written. Rotary positions have none."""
LAYER, GPT2_LAYER, NEOX_LAYER = "model.layers.{i}", "transformer.h.{i}", "gpt_neox.layers.{i}"
SCALINGS = {
    "linear": (("factor", "factor", None),),
    "dynamic": (("factor", "factor", None),),
    "llama3": (
        ("factor", "factor", None),
        ("low_frequency_factor", "low_freq_factor", None),
        ("high_frequency_factor", "high_freq_factor", None),
    ),
    "yarn": (("factor", "factor", None), ("beta_fast", "beta_fast", 32.0), ("beta_slow", "beta_slow", 1.0)),
}
"""Numbers of each kind of scaling: ours, theirs, default (None: required)."""
QK_NORM = under("decoder.{i}.attention", f"{LAYER}.self_attn", q_norm="q_norm", k_norm="k_norm")
NUMBER = tables.codec_for(1.0)
TANH = Codec(lambda name: "gelu-tanh" if name == "gelu" else ACTIVATION.read(name), ACTIVATION.write)
"""Files of Gemma 1 that state gelu mean its approximation."""
SCALE = Codec(lambda scalar: NUMBER.read(scalar) ** -0.5, lambda scale: round(scale**-2))
GEMMA: dict[str, Any] = {"vocab_size": 256000, "head_dim": 256, "tie_word_embeddings": True}
UNSCALED = Codec(lambda scaled: None if tables.codec_for(True).read(scaled) else 1.0, lambda scale: scale != 1.0)
"""Whether scores are divided by √head_size."""


class CausalLm(Family):
    """What all have in common. The first class has an output, the second saves its tensors without the prefix."""

    settings = Decoder
    head_names: ClassVar[tuple[str, ...]] = ("lm_head.",)

    def __init_subclass__(cls) -> None:
        cls.base = cls.architectures[1]


class Gpt2(CausalLm):
    """GPT-2 (Radford et al. 2019). Its weights are [in, out]; query, key and value are one tensor."""

    model_type = "gpt2"
    architectures = ("GPT2LMHeadModel", "GPT2Model")
    prefix = "transformer."
    ignored = (r"\.attn\.(masked_)?bias$",)

    fields = (
        Row("vocabulary", "vocab_size", 50257),
        Row("width", "n_embd", 768),
        Row("depth", "n_layer", 12),
        Row("attention.heads", "n_head", 12),
        Row("attention.scale", "scale_attn_weights", True, UNSCALED),
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
        **under("decoder.{i}.attention", f"{GPT2_LAYER}.attn", tables.JOINED, q="c_attn", k="c_attn", v="c_attn"),
        **under("decoder.{i}.attention", f"{GPT2_LAYER}.attn", tables.TRANSPOSED, out="c_proj"),
        **under("decoder.{i}.attention_residual", GPT2_LAYER, norm="ln_1"),
        **under("decoder.{i}.ffn", f"{GPT2_LAYER}.mlp", tables.TRANSPOSED, up="c_fc", down="c_proj"),
        **under("decoder.{i}.ffn_residual", GPT2_LAYER, norm="ln_2"),
        "decoder.norm": ("transformer.ln_f", SAME),
        "output": ("lm_head", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"tied": True} if config.architecture(self.architectures) == self.base else {}


class Llama(CausalLm):
    """LLaMA (Touvron et al. 2023)."""

    model_type = "llama"
    architectures = ("LlamaForCausalLM", "LlamaModel")
    prefix = "model."
    ignored: ClassVar[tuple[str, ...]] = (r"rotary_emb\.inv_freq$",)
    from_tensors = frozenset({"tied"})

    fields: ClassVar[tuple[Row, ...]] = (
        *varied(
            tables.USUAL,
            vocab_size=32000,
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            intermediate_size=11008,
            hidden_act="silu",
        ),
        Row("attention.head_size", "head_dim", None),
        Row("attention.kv_heads", "num_key_value_heads", None),
        Row("attention.bias", "attention_bias", False),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("ffn.bias", "mlp_bias", False),
        Row("norm.eps", "rms_norm_eps", 1e-6),
        Row("tied", "tie_word_embeddings", False),
    )
    constants: ClassVar = {
        "ffn.kind": "gated",
        "norm.kind": "rms",
        "norm_place": "pre",
        "dropout": 0.0,
        "position.kind": "rotary",
        "position.order": "halves",
    }
    base_key: ClassVar[str] = "rope_theta"
    base_default: ClassVar[float] = 10_000.0
    fraction_key: ClassVar[str] = "partial_rotary_factor"
    fraction_default: ClassVar[float | None] = None
    """The rotated share of channels by default; none: all are rotated, and no other share is supported."""
    qk_norm: ClassVar[bool] = False
    """Whether queries and keys have norms, of the same kind as the layers."""
    written: ClassVar = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    names: ClassVar[Names] = {
        "embedding.tokens": ("model.embed_tokens", SAME),
        **under("decoder.{i}.attention", f"{LAYER}.self_attn", q="q_proj", k="k_proj", v="v_proj", out="o_proj"),
        **under("decoder.{i}.attention_residual", LAYER, norm="input_layernorm"),
        **under("decoder.{i}.ffn", f"{LAYER}.mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        **under("decoder.{i}.ffn_residual", LAYER, norm="post_attention_layernorm"),
        "decoder.norm": ("model.norm", SAME),
        "output": ("lm_head", SAME),
    }

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        rest = self.read_rotation(config)
        if self.qk_norm:
            eps = next(row.read(config) for row in self.fields if row.ours == "norm.eps")
            offset = self.constants.get("norm.unit_offset", False)
            rest["attention.qk_norm"] = {"kind": "rms", "eps": eps, "unit_offset": offset}
        if config.architecture(self.architectures) == self.base:
            rest["tied"] = f"{self.names['output'][0]}.weight" not in tensors
        return rest

    def write_rest(self, settings: Decoder) -> dict[str, Any]:
        return self.write_rotation(settings.position) if isinstance(settings.position, Rotary) else {}

    def read_rotation(self, config: Config) -> dict[str, Any]:
        """Return the rotation: `rope_parameters` since version 5, `rope_theta` and `rope_scaling` before."""
        key = "rope_parameters" if config.values.get("rope_parameters") else "rope_scaling"
        values = config.values.get(key) or {}
        if not isinstance(values, dict):
            raise config.error(key, "must be an object; correct it")
        rope = Config(values, f"{config.source}: {key}")
        base = rope.read("rope_theta", config.read(self.base_key, self.base_default))
        return {"position.base": base} | self.read_scaling(config, rope)

    def read_scaling(self, config: Config, rope: Config) -> dict[str, Any]:
        rope.require({"truncate": True})
        rest: dict[str, Any] = {}
        if self.fraction_default is None:
            for values in (config, rope):
                values.require({self.fraction_key: 1.0})
        else:
            stated = config.read(self.fraction_key, self.fraction_default)
            rest["position.fraction"] = rope.read("partial_rotary_factor", stated)
        if scaling := _read_scaling(config, rope):
            rest["position.scaling"] = scaling
        return rest

    def write_rotation(self, position: Rotary) -> dict[str, Any]:
        scaling = _write_scaling(position)
        length = getattr(position.scaling, "original_length", LENGTH)
        # The length of dynamic scaling is that of the model.
        length = length if scaling["rope_type"] == "dynamic" else int(length * scaling.get("factor", 1.0))
        rope = {"rope_theta": position.base, **scaling}
        values = {"max_position_embeddings": length, self.base_key: position.base, "rope_parameters": rope}
        if self.fraction_default is not None:
            values[self.fraction_key] = rope["partial_rotary_factor"] = position.fraction
        return values


class Mistral(Llama):
    """Mistral 7B (Jiang et al. 2023): LLaMA with a sliding window."""

    model_type = "mistral"
    architectures = ("MistralForCausalLM", "MistralModel")
    fields = (
        *varied(Llama.fields, ("attention_bias", "mlp_bias"), intermediate_size=14336, num_key_value_heads=8),
        Row("attention.window", "sliding_window", 4096, optional=True),
    )
    constants: ClassVar = Llama.constants | {"attention.bias": False, "ffn.bias": False}


class Windows(Llama):
    """A type whose `layer_types` list the layers with a window."""

    fields = (*varied(Llama.fields, ("mlp_bias",)), Row("attention.window", "sliding_window", 4096, optional=True))
    constants: ClassVar = Llama.constants | {"ffn.bias": False}
    switch: ClassVar[str | None] = "use_sliding_window"
    """The key without which no layer has a window; none: there is no such key."""

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        found = tables.window_settings(config, self.usual_kinds)
        used = self.switch is None or config.read(self.switch, False)
        if not used or config.values.get("sliding_window", 4096) is None:
            found = {"attention.window": None, "position.window_base": None}
        return super().read_rest(config, tensors) | found

    def usual_kinds(self, config: Config) -> list[str]:
        """Return the types of layers of a config that does not list them."""
        first = config.values.get("max_window_layers", 28)
        if type(first) is not int:
            raise config.error("max_window_layers", "must be an integer; correct it")
        return [tables.FULL if i < first else tables.WINDOW for i in range(config.read("num_hidden_layers", 32))]

    def write_rest(self, settings: Decoder) -> dict[str, Any]:
        kinds = tables.layer_types(settings)
        switch = {} if self.switch is None else {self.switch: tables.WINDOW in kinds}
        window = settings.attention.window or 4096  # their code needs a number even if no layer has a window
        return super().write_rest(settings) | switch | {"layer_types": kinds, "sliding_window": window}


class Qwen2(Windows):
    """Qwen 2 and 2.5 (Yang et al. 2024): biases of queries, keys and values."""

    model_type = "qwen2"
    architectures = ("Qwen2ForCausalLM", "Qwen2Model")
    fields = varied(Windows.fields, ("attention_bias",), vocab_size=151936, intermediate_size=22016)
    constants: ClassVar = Windows.constants | {"attention.bias": True, "attention.output_bias": False}


class Qwen3(Windows):
    """Qwen 3 (Yang et al. 2025): norms of each head's queries and keys."""

    model_type = "qwen3"
    architectures = ("Qwen3ForCausalLM", "Qwen3Model")
    fields = varied(Windows.fields, vocab_size=151936, intermediate_size=22016, head_dim=128)
    names: ClassVar = Windows.names | QK_NORM
    qk_norm = True


class Olmo2(Llama):
    """OLMo 2 (Walsh et al. 2025): norms of each sublayer's output, and of all queries and all keys of a token."""

    model_type = "olmo2"
    architectures = ("Olmo2ForCausalLM", "Olmo2Model")
    fields = varied(Llama.fields, ("mlp_bias",), vocab_size=50304, rms_norm_eps=1e-5)
    constants: ClassVar = Llama.constants | {
        "ffn.bias": False,
        "norm_place": "output",
        "attention.qk_norm_joint": True,
    }
    names: ClassVar = Llama.names | {
        **QK_NORM,
        **under("decoder.{i}.attention_residual", LAYER, norm="post_attention_layernorm"),
        **under("decoder.{i}.ffn_residual", LAYER, norm="post_feedforward_layernorm"),
    }
    qk_norm = True


class Phi3(Mistral):
    """Phi-3 and Phi-4 (Abdin et al. 2024): joined matrices, and a share of channels that is rotated."""

    model_type = "phi3"
    architectures = ("Phi3ForCausalLM", "Phi3Model")
    fields = varied(
        Mistral.fields,
        vocab_size=32064,
        hidden_size=3072,
        intermediate_size=8192,
        num_key_value_heads=None,
        rms_norm_eps=1e-5,
        sliding_window=None,
    )
    fraction_default = 1.0

    def names_for(self, settings: Body) -> Names:
        queries, keys = settings.attention.heads * settings.head_size, settings.kv_heads * settings.head_size
        three, two = tables.joined([queries, keys, keys]), tables.joined([settings.ffn_hidden] * 2)
        attention = under("decoder.{i}.attention", f"{LAYER}.self_attn", three, **dict.fromkeys("qkv", "qkv_proj"))
        ffn = under("decoder.{i}.ffn", f"{LAYER}.mlp", two, gate="gate_up_proj", up="gate_up_proj")
        return self.names | attention | ffn


def _read_scaling(config: Config, rope: Config) -> dict[str, Any] | None:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind == "default":
        return None
    if kind not in SCALINGS:
        key = "rope_type" if "rope_type" in rope.values else "type"
        raise rope.error(key, f"is not supported; choose one of default, {', '.join(SCALINGS)}")
    scaling: dict[str, Any] = {"kind": kind}
    for ours, theirs, default in SCALINGS[kind]:
        if default is None and rope.values.get(theirs) is None:
            raise rope.error(theirs, f"is required by rope_type {kind}; give it a value")
        scaling[ours] = rope.read(theirs, default or 1.0)
    if kind != "linear":
        key = "original_max_position_embeddings"
        longest = config.read("max_position_embeddings", LENGTH)
        stated = None if kind == "dynamic" else config.read(key, None)
        scaling["original_length"] = stated or (longest if kind == "dynamic" else rope.read(key, longest))
    if kind == "yarn":  # later variants of YaRN scale attention by other factors than the paper's
        wanted, values = 0.1 * math.log(scaling["factor"]) + 1.0, rope.values
        if not math.isclose(rope.read("attention_factor", wanted), wanted, rel_tol=1e-6):
            raise rope.error("attention_factor", f"is not supported, only {wanted:.6f} is with this factor")
        if values.get("mscale") and values.get("mscale_all_dim") and values.get("attention_factor") is None:
            raise rope.error("mscale", "with mscale_all_dim is not supported; convert the model without it")
    return scaling


def _write_scaling(position: Rotary) -> dict[str, Any]:
    scaling = position.scaling
    if scaling is None:
        return {"rope_type": "default"}
    values = {theirs: getattr(scaling, ours) for ours, theirs, _ in SCALINGS[scaling.kind]}
    if isinstance(scaling, Llama3Scaling | YarnScaling):
        values["original_max_position_embeddings"] = scaling.original_length
    return {"rope_type": scaling.kind, **values}


class Gemma(Llama):
    """Gemma 1, text only (Gemma Team 2024): LLaMA with larger heads and other norms."""

    model_type = "gemma"
    architectures = ("GemmaForCausalLM", "GemmaModel")
    fields = (
        *varied(
            Llama.fields,
            ("hidden_act", "mlp_bias"),
            **GEMMA,
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
    """Gemma 2: norms before and after each sublayer, limited scores and logits, windows."""

    model_type = "gemma2"
    architectures = ("Gemma2ForCausalLM", "Gemma2Model")
    fields = (
        *varied(
            Windows.fields,
            ("hidden_act",),
            **GEMMA,
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
        return [tables.WINDOW if (i + 1) % period else tables.FULL for i in range(config.read("num_hidden_layers", 26))]


class Gemma3(Gemma2):
    """The text part of Gemma 3: norms of queries and keys, and another rotation in layers with a window."""

    model_type = "gemma3_text"
    architectures = ("Gemma3ForCausalLM", "Gemma3TextModel")
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
        full = super().read_rotation(Config(values | {"rope_parameters": stated.get(tables.FULL)}, config.source))
        base = tables.rotation_base(config, tables.WINDOW, "rope_local_base_freq", 10_000.0)
        return full | {"position.window_base": base}

    def write_rotation(self, position: Rotary) -> dict[str, Any]:
        values, both = super().write_rotation(position), tables.rotation_bases(position)
        both[tables.FULL] = values["rope_parameters"]
        return values | {"rope_local_base_freq": both[tables.WINDOW]["rope_theta"], "rope_parameters": both}


def by_heads(heads: int) -> tables.Form:
    """Query, key and value of the first head, then those of the second."""

    def write(own: tables.Tensors) -> Tensor:
        return torch.stack([each.view(heads, -1, *each.shape[1:]) for each in own], 1).flatten(0, 2)

    def read(tensor: Tensor) -> tables.Tensors:
        three = tensor.view(heads, 3, -1, *tensor.shape[1:]).unbind(1)
        return tuple(each.flatten(0, 1) for each in three)

    return tables.Form(write, read)


class GptNeoX(Llama):
    """GPT-NeoX and Pythia (Black et al. 2022): parallel sublayers; query, key and value of each head are neighbours."""

    model_type = "gpt_neox"
    architectures = ("GPTNeoXForCausalLM", "GPTNeoXModel")
    prefix = "gpt_neox."
    head_names = ("embed_out.",)
    renamed = ((r"^lm_head\.", "embed_out."),)
    ignored = (*Llama.ignored, r"\.attention\.(masked_)?bias$")
    base_key, fraction_key, fraction_default = "rotary_emb_base", "rotary_pct", 0.25

    fields = (
        *varied(
            tables.USUAL,
            vocab_size=50432,
            hidden_size=6144,
            num_hidden_layers=44,
            num_attention_heads=64,
            intermediate_size=24576,
        ),
        Row("attention.bias", "attention_bias", True),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("norm.eps", "layer_norm_eps", 1e-5),
        Row("dropout", "hidden_dropout", 0.0),
        Row("parallel", "use_parallel_residual", True),
        Row("tied", "tie_word_embeddings", False),
    )
    constants: ClassVar = {"norm_place": "pre", "position.kind": "rotary", "position.order": "halves"}
    names: ClassVar[Names] = {
        "embedding.tokens": ("gpt_neox.embed_in", SAME),
        **under("decoder.{i}.attention", f"{NEOX_LAYER}.attention", out="dense"),
        **under("decoder.{i}.attention_residual", NEOX_LAYER, norm="input_layernorm"),
        **under("decoder.{i}.ffn", f"{NEOX_LAYER}.mlp", up="dense_h_to_4h", down="dense_4h_to_h"),
        **under("decoder.{i}.ffn_residual", NEOX_LAYER, norm="post_attention_layernorm"),
        "decoder.norm": ("gpt_neox.final_layer_norm", SAME),
        "output": ("embed_out", SAME),
    }

    def names_for(self, settings: Body) -> Names:
        one = dict.fromkeys("qkv", "query_key_value")
        return self.names | under(
            "decoder.{i}.attention", f"{NEOX_LAYER}.attention", by_heads(settings.attention.heads), **one
        )


DECODERS = (Gpt2(), Llama(), Mistral(), Qwen2(), Qwen3(), Phi3(), Olmo2(), Gemma(), Gemma2(), Gemma3(), GptNeoX())
