"""LLaMA (Touvron et al. 2023) and models of its shape: Mistral, Qwen 2 and 3, Phi-3, OLMo 2. SmolLM is a LLaMA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from regard.blocks.settings import Body, Llama3Scaling, Rotary, YarnScaling
from regard.models.settings import Decoder
from regard.weights.huggingface.tables import ACTIVATION, SAME, Config, Family, Names, Row, joined, under, varied

LENGTH = 2048
"""The maximum length that is written. Rotary positions have none."""
LAYER = "model.layers.{i}"
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
FULL, WINDOW = "full_attention", "sliding_attention"
KINDS = {FULL: "full", WINDOW: "window"}
"""Their types of layers, and ours."""
QK_NORM = under("decoder.{i}.attention", f"{LAYER}.self_attn", q_norm="q_norm", k_norm="k_norm")


class Llama(Family):
    """The type of LLaMA models."""

    model_type = "llama"
    settings = Decoder
    architectures = ("LlamaForCausalLM", "LlamaModel")
    base = "LlamaModel"
    prefix = "model."
    head_names = ("lm_head.",)
    ignored: ClassVar[tuple[str, ...]] = (r"rotary_emb\.inv_freq$",)
    from_tensors = frozenset({"tied"})

    fields: ClassVar[tuple[Row, ...]] = (
        Row("vocabulary", "vocab_size", 32000),
        Row("width", "hidden_size", 4096),
        Row("depth", "num_hidden_layers", 32),
        Row("attention.heads", "num_attention_heads", 32),
        Row("attention.head_size", "head_dim", None),
        Row("attention.kv_heads", "num_key_value_heads", None),
        Row("attention.bias", "attention_bias", False),
        Row("attention.dropout", "attention_dropout", 0.0),
        Row("ffn.hidden", "intermediate_size", 11008),
        Row("ffn.activation", "hidden_act", "silu", ACTIVATION),
        Row("ffn.bias", "mlp_bias", False),
        Row("norm.eps", "rms_norm_eps", 1e-6),
        Row("tied", "tie_word_embeddings", False),
        Row("initial.deviation", "initializer_range", 0.02),
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
    base = "MistralModel"
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
        kinds = config.values.get("layer_types") or self.usual_kinds(config)
        if not isinstance(kinds, list) or len(kinds) != config.read("num_hidden_layers", len(kinds)):
            raise config.error("layer_types", "must be a list with an entry for each layer; correct it")
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise config.error("layer_types", f"has {unknown[0]}, only {' and '.join(KINDS)} are supported")
        pattern = [KINDS[kind] for kind in kinds]
        rest = super().read_rest(config, tensors)
        used = self.switch is None or config.read(self.switch, False)
        if not used or "window" not in pattern or config.values.get("sliding_window", 4096) is None:
            return rest | {"attention.window": None, "position.window_base": None}
        period = next(n for n in range(1, len(pattern) + 1) if pattern == (pattern[:n] * len(pattern))[: len(pattern)])
        return rest | ({"attention.pattern": pattern[:period]} if "full" in pattern else {})

    def usual_kinds(self, config: Config) -> list[str]:
        """Return the types of layers of a config that does not list them."""
        first = config.values.get("max_window_layers", 28)
        if type(first) is not int:
            raise config.error("max_window_layers", "must be an integer; correct it")
        return [FULL if i < first else WINDOW for i in range(config.read("num_hidden_layers", 32))]

    def write_rest(self, settings: Decoder) -> dict[str, Any]:
        windows = settings.attention.windows(settings.depth)
        kinds = [FULL if window is None else WINDOW for window in windows]
        switch = {} if self.switch is None else {self.switch: WINDOW in kinds}
        window = settings.attention.window or 4096  # their code needs a number even if no layer has a window
        return super().write_rest(settings) | switch | {"layer_types": kinds, "sliding_window": window}


class Qwen2(Windows):
    """Qwen 2 and 2.5 (Yang et al. 2024): biases of queries, keys and values."""

    model_type = "qwen2"
    architectures = ("Qwen2ForCausalLM", "Qwen2Model")
    base = "Qwen2Model"
    fields = varied(Windows.fields, ("attention_bias",), vocab_size=151936, intermediate_size=22016)
    constants: ClassVar = Windows.constants | {"attention.bias": True, "attention.output_bias": False}


class Qwen3(Windows):
    """Qwen 3 (Yang et al. 2025): norms of each head's queries and keys."""

    model_type = "qwen3"
    architectures = ("Qwen3ForCausalLM", "Qwen3Model")
    base = "Qwen3Model"
    fields = varied(Windows.fields, vocab_size=151936, intermediate_size=22016, head_dim=128)
    names: ClassVar = Windows.names | QK_NORM
    qk_norm = True


class Olmo2(Llama):
    """OLMo 2 (Walsh et al. 2025): norms of each sublayer's output, and of all queries and all keys of a token."""

    model_type = "olmo2"
    architectures = ("Olmo2ForCausalLM", "Olmo2Model")
    base = "Olmo2Model"
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
    base = "Phi3Model"
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
        three, two = joined([queries, keys, keys]), joined([settings.ffn_hidden] * 2)
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
    if scaling is None or scaling.kind not in SCALINGS:
        return {"rope_type": "default"}
    values = {theirs: getattr(scaling, ours) for ours, theirs, _ in SCALINGS[scaling.kind]}
    if isinstance(scaling, Llama3Scaling | YarnScaling):
        values["original_max_position_embeddings"] = scaling.original_length
    return {"rope_type": scaling.kind, **values}
