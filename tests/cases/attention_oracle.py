"""Attention from its definitions, in NumPy and float64: one sequence, one head, one query, one key at a time.

Written without a look at the library, so that the library's blocks can be held against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Weights:
    """One attention layer's parameters as NumPy arrays, by their canonical names; absent ones are missing keys."""

    arrays: dict[str, Array]
    heads: int
    kv_heads: int
    scale: float
    soft_cap: float | None = None

    def project(self, name: str, x: Array) -> Array:
        y = x @ self.arrays[f"{name}.weight"].T
        return y + self.arrays[f"{name}.bias"] if f"{name}.bias" in self.arrays else y


def attention(
    weights: Weights,
    queries: Array,
    keys: Array,
    sees: Callable[[int, int], bool],
    turn: Callable[[Array, int], Array] | None = None,
    bias: Callable[[int, int, int], float] | None = None,
    distance_code: Callable[[int], Array] | None = None,
) -> Array:
    """[Q, D] from queries [Q, D] and keys [K, D] of one sequence.

    `turn(vector, place)` rotates a head's query or key, `bias(head, i, j)` is added to a score, `distance_code(i − j)`
    is Transformer-XL's encoding of a distance.
    """
    q = _by_head(weights.project("q", queries), weights.heads)
    k = _by_head(weights.project("k", keys), weights.kv_heads)
    v = _by_head(weights.project("v", keys), weights.kv_heads)
    joined = np.zeros((len(queries), weights.heads, v.shape[-1]))
    group = weights.heads // weights.kv_heads
    for i in range(len(queries)):
        seen = [j for j in range(len(keys)) if sees(i, j)]
        if not seen:
            continue
        for h in range(weights.heads):
            scores = np.array(
                [_score(weights, q[i, h], k[j, h // group], h, i, j, turn, bias, distance_code) for j in seen]
            )
            share = np.exp(scores - scores.max())
            sink = np.exp(weights.arrays["sinks"][h] - scores.max()) if "sinks" in weights.arrays else 0.0
            share /= share.sum() + sink
            joined[i, h] = sum(part * v[j, h // group] for part, j in zip(share, seen, strict=True))
    return weights.project("out", joined.reshape(len(queries), weights.heads * v.shape[-1]))


def _by_head(x: Array, heads: int) -> Array:
    return x.reshape(len(x), heads, x.shape[1] // heads)


def _score(
    weights: Weights,
    q: Array,
    k: Array,
    h: int,
    i: int,
    j: int,
    turn: Callable[[Array, int], Array] | None,
    bias: Callable[[int, int, int], float] | None,
    distance_code: Callable[[int], Array] | None,
) -> float:
    q, k = _normed(weights, "q_norm", q), _normed(weights, "k_norm", k)
    if turn is not None:
        q, k = turn(q, i), turn(k, j)
    extra = 0.0
    content = q
    if distance_code is not None:
        projected = weights.arrays["relative.project.weight"] @ distance_code(i - j)
        projected = projected.reshape(weights.heads, -1)[h]
        extra = float((q + weights.arrays["relative.distance"][h]) @ projected) * weights.scale
        content = q + weights.arrays["relative.content"][h]
    score = float(content @ k) * weights.scale
    if weights.soft_cap is not None:
        score = weights.soft_cap * math.tanh(score / weights.soft_cap)
    return score + extra + (0.0 if bias is None else bias(h, i, j))


def _normed(weights: Weights, name: str, x: Array) -> Array:
    if f"{name}.weight" not in weights.arrays:
        return x
    return x / np.sqrt(np.mean(x**2) + 1e-6) * weights.arrays[f"{name}.weight"]


# -------------------------------------------------------------------------------------------- positions, by definition


def sinusoid(place: float, width: int, base: float = 10_000.0, halves: bool = False) -> Array:
    sines = [math.sin(place / base ** (2 * j / width)) for j in range((width + 1) // 2)]
    cosines = [math.cos(place / base ** (2 * j / width)) for j in range((width + 1) // 2)]
    if halves:
        return np.array([*sines, *cosines][:width])
    return np.array([value for pair in zip(sines, cosines, strict=True) for value in pair][:width])


def turned(x: Array, angles: list[float], halves: bool) -> Array:
    """Pairs of channels as complex numbers, each multiplied by e^(i·angle); channels beyond the pairs pass."""
    n = len(angles)
    first, second = (x[:n], x[n : 2 * n]) if halves else (x[0 : 2 * n : 2], x[1 : 2 * n : 2])
    z = (first + 1j * second) * np.exp(1j * np.array(angles))
    out = x.copy()
    if halves:
        out[:n], out[n : 2 * n] = z.real, z.imag
    else:
        out[0 : 2 * n : 2], out[1 : 2 * n : 2] = z.real, z.imag
    return out


def t5_bucket(distance: int, buckets: int, longest: int, causal: bool) -> int:
    """T5's rule in words: near distances have a bucket each, far ones share logarithmically, up to the longest."""
    first = 0
    if causal:
        distance = max(distance, 0)
    else:
        buckets //= 2
        first = buckets if distance < 0 else 0
        distance = abs(distance)
    single = buckets // 2
    if distance < single:
        return first + distance
    grown = single + int(math.log(distance / single) / math.log(longest / single) * (buckets - single))
    return first + min(grown, buckets - 1)


def alibi_slope(head: int, heads: int) -> float:
    """The series of the paper, for a number of heads that is a power of two."""
    assert heads & (heads - 1) == 0
    return 2.0 ** (-8.0 * (head + 1) / heads)
