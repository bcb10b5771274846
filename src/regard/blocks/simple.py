"""Attention with nothing to learn, as lectures introduce it: the ideas behind the blocks, in a line each."""

from __future__ import annotations

import torch
from torch import Tensor


def self_attention(x_TD: Tensor) -> Tensor:
    """z_i = Σ_j softmax_j(x_i · x_j) x_j: each vector becomes a mixture of all, by likeness. Has no parameters."""
    return torch.softmax(x_TD @ x_TD.mT, dim=-1) @ x_TD


def soft_dictionary(query: Tensor, keys: Tensor, values: Tensor, sharpness: float = 1.0) -> Tensor:
    """Looks a query `[..., E]` up among keys `[K, E]`; every value `[K, V]` answers as far as its key matches.

    The larger the sharpness, the nearer to a Python dictionary, which answers with one value alone.
    """
    return torch.softmax(sharpness * (query @ keys.mT), dim=-1) @ values


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Σ weight · value: what attention does once it has its weights. `[..., K]` and `[K, V]` give `[..., V]`."""
    return weights @ values


def shares(similarities: Tensor) -> Tensor:
    """Similarities divided by their sum, so that they can serve as weights."""
    return similarities / similarities.sum(-1, keepdim=True)
