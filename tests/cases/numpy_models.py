"""LLaMA and T5 in float64, written with NumPy from their papers, from nothing but the tensors of a file.

transformers computes norms, rotations and some softmaxes of these two in float32 whatever the model's type, so it
cannot say what a float64 model should answer. One sequence at a time, no batch, no cache, no masks but the causal one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "silu": silu, "gelu_new": gelu_tanh, "gelu": gelu}


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def linear(x: Array, weights: Weights, name: str) -> Array:
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def split_heads(x: Array, heads: int) -> Array:
    """[T, H·E] to [H, T, E]."""
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def join_heads(x: Array) -> Array:
    """[H, T, E] to [T, H·E]."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def causal(scores: Array) -> Array:
    """Scores [H, T, T] without those of keys behind their query."""
    time = scores.shape[-1]
    return np.where(np.arange(time)[None, :] > np.arange(time)[:, None], -np.inf, scores)


# ------------------------------------------------------------------------------------------------------------- LLaMA


def llama_logits(weights: Weights, config: Mapping[str, Any], tokens: list[int]) -> Array:
    """[T, V] (Touvron et al. 2023; rotation as in Su et al. 2021, channels paired by halves)."""
    eps, heads = config["rms_norm_eps"], config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    act = ACTIVATIONS[config["hidden_act"]]
    x = weights["model.embed_tokens.weight"][tokens]
    size = weights["model.layers.0.self_attn.q_proj.weight"].shape[0] // heads
    angle, factor = rotary_angles(len(tokens), size, config)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = rms_norm(x, weights[f"{layer}.input_layernorm.weight"], eps)
        q = rotated(split_heads(linear(y, weights, f"{layer}.self_attn.q_proj"), heads), angle, factor)
        k = rotated(split_heads(linear(y, weights, f"{layer}.self_attn.k_proj"), groups), angle, factor)
        v = split_heads(linear(y, weights, f"{layer}.self_attn.v_proj"), groups)
        k, v = (np.repeat(z, heads // groups, axis=0) for z in (k, v))
        mixed = softmax(causal(q @ k.transpose(0, 2, 1) / math.sqrt(size))) @ v
        x = x + linear(join_heads(mixed), weights, f"{layer}.self_attn.o_proj")
        y = rms_norm(x, weights[f"{layer}.post_attention_layernorm.weight"], eps)
        gate = act(linear(y, weights, f"{layer}.mlp.gate_proj"))
        x = x + linear(gate * linear(y, weights, f"{layer}.mlp.up_proj"), weights, f"{layer}.mlp.down_proj")
    x = rms_norm(x, weights["model.norm.weight"], eps)
    return x @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T


def rotary_angles(time: int, size: int, config: Mapping[str, Any]) -> tuple[Array, float]:
    """[T, E/2]: the angle of each place and pair, and the factor on cosines and sines."""
    rope = config["rope_parameters"]
    base = rope["rope_theta"]
    turn = base ** (-np.arange(0, size, 2) / size)
    kind, factor = rope["rope_type"], 1.0
    if kind == "linear":
        turn = turn / rope["factor"]
    elif kind == "llama3":
        # Meta's code: by wavelength, with the smooth step between the two limits.
        old, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        scaled = []
        for value in turn:
            wavelength = 2 * math.pi / value
            if wavelength < old / high:
                scaled.append(value)
            elif wavelength > old / low:
                scaled.append(value / rope["factor"])
            else:
                smooth = (old / wavelength - low) / (high - low)
                scaled.append((1 - smooth) * value / rope["factor"] + smooth * value)
        turn = np.array(scaled)
    elif kind == "yarn":
        # Peng et al. 2023, section 3.2, with the bounds rounded outwards to whole pairs as in their code.
        def pair(turns: float) -> float:
            return (
                size * math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi)) / 2 / math.log(base)
            )

        low = max(math.floor(pair(rope.get("beta_fast") or 32)), 0)
        high = min(math.ceil(pair(rope.get("beta_slow") or 1)), size - 1)
        ramp = np.clip((np.arange(size // 2) - low) / (high - low or 0.001), 0, 1)
        turn = turn / rope["factor"] * ramp + turn * (1 - ramp)
        factor = 0.1 * math.log(rope["factor"]) + 1
    return np.arange(time)[:, None] * turn, factor


def rotated(x: Array, angle: Array, factor: float) -> Array:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


# ---------------------------------------------------------------------------------------------------------------- T5


def t5_logits(weights: Weights, config: Mapping[str, Any], source: list[int], target: list[int]) -> Array:
    """[T, V] (Raffel et al. 2020)."""
    memory = t5_stack(weights, config, "encoder", weights["shared.weight"][source], None)
    x = t5_stack(weights, config, "decoder", weights["shared.weight"][target], memory)
    if config["scale_decoder_outputs"]:
        x = x * config["d_model"] ** -0.5
    return x @ weights.get("lm_head.weight", weights["shared.weight"]).T


def t5_stack(weights: Weights, config: Mapping[str, Any], stack: str, x: Array, memory: Array | None) -> Array:
    eps = config["layer_norm_epsilon"]
    depth = config["num_layers"] if memory is None else config["num_decoder_layers"]
    table = weights[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = t5_bias(table, len(x), config, memory is not None)
    for i in range(depth):
        layer = f"{stack}.block.{i}.layer"
        y = rms_norm(x, weights[f"{layer}.0.layer_norm.weight"], eps)
        x = x + t5_attention(weights, config, f"{layer}.0.SelfAttention", y, y, bias, memory is not None)
        if memory is not None:
            y = rms_norm(x, weights[f"{layer}.1.layer_norm.weight"], eps)
            x = x + t5_attention(weights, config, f"{layer}.1.EncDecAttention", y, memory, None, False)
        last = f"{layer}.{1 if memory is None else 2}"
        y = rms_norm(x, weights[f"{last}.layer_norm.weight"], eps)
        x = x + t5_feed_forward(weights, config, f"{last}.DenseReluDense", y)
    return rms_norm(x, weights[f"{stack}.final_layer_norm.weight"], eps)


def t5_attention(
    weights: Weights, config: Mapping[str, Any], name: str, x: Array, memory: Array, bias: Array | None, masked: bool
) -> Array:
    heads = config["num_heads"]
    q = split_heads(linear(x, weights, f"{name}.q"), heads)
    k, v = (split_heads(linear(memory, weights, f"{name}.{part}"), heads) for part in "kv")
    scores = q @ k.transpose(0, 2, 1) + (0 if bias is None else bias)
    mixed = softmax(causal(scores) if masked else scores) @ v
    return linear(join_heads(mixed), weights, f"{name}.o")


def t5_feed_forward(weights: Weights, config: Mapping[str, Any], name: str, x: Array) -> Array:
    act = ACTIVATIONS[config["dense_act_fn"]]
    if config["is_gated_act"]:
        hidden = act(linear(x, weights, f"{name}.wi_0")) * linear(x, weights, f"{name}.wi_1")
    else:
        hidden = act(linear(x, weights, f"{name}.wi"))
    return linear(hidden, weights, f"{name}.wo")


def t5_bias(table: Array, time: int, config: Mapping[str, Any], masked: bool) -> Array:
    """[H, T, T]: the learned score of each distance's bucket, worked out distance by distance."""
    bias = np.empty((table.shape[1], time, time))
    for query in range(time):
        for key in range(time):
            bias[:, query, key] = table[t5_bucket(key - query, config, masked)]
    return bias


def t5_bucket(distance: int, config: Mapping[str, Any], masked: bool) -> int:
    """The bucket of key − query: half of them exact, the others logarithmic up to the longest distance."""
    buckets, longest = config["relative_attention_num_buckets"], config["relative_attention_max_distance"]
    first = 0
    if masked:
        distance = max(-distance, 0)
    else:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    grown = exact + int(math.log(distance / exact) / math.log(longest / exact) * (buckets - exact))
    return first + min(grown, buckets - 1)
