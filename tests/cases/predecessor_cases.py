"""Small models of the families before the Transformer, and an LSTM written with NumPy from its equations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.blocks.settings import Learned, StateAttention
from regard.models import settings

Array = NDArray[np.float64]
VOCABULARY = 13


def recurrent(score: str = "general", window: int | None = None, **changes: Any) -> settings.Recurrent:
    attention = StateAttention(score=score, window=window)  # type: ignore[arg-type]
    return settings.Recurrent(
        **{"vocabulary": VOCABULARY, "width": 8, "depth": 2, "dropout": 0.0, "attention": attention, **changes}
    )


def convolutional(**changes: Any) -> settings.Convolutional:
    return settings.Convolutional(
        **{"vocabulary": VOCABULARY, "width": 8, "depth": 2, "dropout": 0.0, "position": Learned(length=16), **changes}
    )


WRITERS: dict[str, settings.ModelSettings] = {
    "dot": recurrent("dot"),
    "general": recurrent(depth=1, bidirectional=False),
    "additive": recurrent("additive", cell="gru", decoder_depth=3),
    "local": recurrent("additive", window=2),
    "last": recurrent("last"),
    "last, one direction": recurrent("last", bidirectional=False, cell="gru"),
    "sum": recurrent("sum", depth=1),
    "convolutional": convolutional(),
    "convolutional, even kernel": convolutional(kernel=4, depth=1, decoder_depth=2),
    "convolutional, kernel of one": convolutional(kernel=1),
}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def lstm(x_TD: Array, weights: Mapping[str, Array], layer: str, start: tuple[Array, Array] | None = None) -> Array:
    """The states `[T, D]` of one layer in one direction (Hochreiter and Schmidhuber 1997, with a forget gate).

    `layer` ends the names of its tensors: `l0`, or `l0_reverse`. Gates are in PyTorch's order: input, forget, new
    value, output.
    """
    size = weights[f"weight_hh_{layer}"].shape[1]
    hidden, cell = (np.zeros(size), np.zeros(size)) if start is None else start
    bias = weights[f"bias_ih_{layer}"] + weights[f"bias_hh_{layer}"]
    states = []
    for x in x_TD:
        gates = weights[f"weight_ih_{layer}"] @ x + weights[f"weight_hh_{layer}"] @ hidden + bias
        read, forget, new, out = np.split(gates, 4)
        cell = sigmoid(forget) * cell + sigmoid(read) * np.tanh(new)
        hidden = sigmoid(out) * np.tanh(cell)
        states.append(hidden)
    return np.array(states)
