"""Heads: from the hidden states of an encoder to answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.embedding import pool
from regard.blocks.layers import activation
from regard.blocks.layout import Layout, Padded
from regard.blocks.norms import build_norm
from regard.blocks.recording import POOLED_TAP, SEQUENCE_TAP, TOKEN_TAP, VOCABULARY_TAP, Tap, named_taps, tap
from regard.blocks.settings import Norm, PoolingKind
from regard.errors import SettingsError
from regard.models import settings


class Output(nn.Module):
    """Scores over a vocabulary: a matrix of its own, or that of an embedding."""

    def __init__(
        self, tokens: nn.Embedding | None, vocabulary: int, width: int, bias: bool, scale: float | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width)) if tokens is None else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self.scale = scale
        self.product: nn.Module | None = None
        """What computes the scores in the place of the matrix; see `regard.models.cpu`."""
        # In a tuple, so that it is not registered here too: the embedding owns the matrix, wherever it is moved.
        self._tied: tuple[nn.Embedding, ...] = () if tokens is None else (tokens,)

    def taps(self) -> dict[str, Tap]:
        return named_taps([VOCABULARY_TAP])

    @property
    def matrix(self) -> Tensor:
        """`[V, D]`: the weights, wherever they belong."""
        return self._tied[0].weight if self.weight is None else self.weight

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D]` to `[..., V]`."""
        if self.product is not None:
            return tap(self, "logits", self.product(x))
        scores = functional.linear(x if self.scale is None else x * self.scale, self.matrix, self.bias)
        return tap(self, "logits", scores)


class Head(nn.Module):
    """Base of all heads."""

    def taps(self) -> dict[str, Tap]:
        """The values that can be recorded, by name."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        """Hidden states `[B, T, D]` (or `[N, D]` with their packed layout) to scores."""
        raise NotImplementedError


class MaskedHead(Head):
    """`[..., V]`: which token stood here. May be given the hidden states of chosen tokens alone."""

    def __init__(self, head: settings.Masked, norm: Norm, tokens: nn.Embedding) -> None:
        super().__init__()
        width = tokens.embedding_dim
        self.dense = nn.Linear(width, width)
        self.activation = activation(head.activation)
        self.norm = build_norm(norm, width)
        self.output = Output(tokens if head.tied else None, tokens.num_embeddings, width, bias=True)

    def taps(self) -> dict[str, Tap]:
        return named_taps([VOCABULARY_TAP], "output.")

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        scores: Tensor = self.output(self.norm(self.activation(self.dense(hidden))))
        return scores


class PoolingHead(Head):
    """`[B, D]`: one vector for each sequence."""

    def __init__(self, pooling: PoolingKind, dense: bool, width: int) -> None:
        super().__init__()
        self.pooling: PoolingKind = pooling
        self.pool = nn.Linear(width, width) if dense else None

    def taps(self) -> dict[str, Tap]:
        return named_taps([POOLED_TAP])

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        layout = Padded(*hidden.shape[:2]) if layout is None else layout
        pooled = pool(hidden, layout, self.pooling)
        return tap(self, "pooled", pooled if self.pool is None else self.pool(pooled).tanh())


class SequenceHead(PoolingHead):
    """`[B, classes]`: scores for each sequence."""

    def __init__(self, pooling: PoolingKind, dense: bool, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__(pooling, dense, width)
        self.output = nn.Linear(width, classes)
        self.dropout = dropout

    def taps(self) -> dict[str, Tap]:
        return named_taps([POOLED_TAP, SEQUENCE_TAP])

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        pooled = functional.dropout(super().forward(hidden, layout), self.dropout, self.training)
        return tap(self, "logits", self.output(pooled))


class TokenHead(Head):
    """`[..., classes]`: scores for each token; two of them, start and end, where answers are spans."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.output = nn.Linear(width, classes)
        self.dropout = dropout

    def taps(self) -> dict[str, Tap]:
        return named_taps([TOKEN_TAP])

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        return tap(self, "logits", self.output(functional.dropout(hidden, self.dropout, self.training)))


def build_head(
    head: settings.TextHead | settings.ImageHead, width: int, norm: Norm, tokens: nn.Embedding | None = None
) -> Head:
    if isinstance(head, settings.Masked):
        assert tokens is not None  # the settings of images have no such head
        return MaskedHead(head, norm, tokens)
    if isinstance(head, settings.NextSentence):
        return SequenceHead(head.pooling, head.dense, width, classes=2)
    if isinstance(head, settings.Classification):
        return SequenceHead(head.pooling, head.dense, width, head.classes, head.dropout)
    if isinstance(head, settings.Tagging):
        return TokenHead(width, head.classes, head.dropout)
    if isinstance(head, settings.Spans):
        return TokenHead(width, classes=2)
    return PoolingHead(head.pooling, head.dense, width)


def name_heads(heads: Mapping[str, Head]) -> nn.ModuleDict:
    """The heads by name; refuses the names that PyTorch's own modules use, such as "type"."""
    named = nn.ModuleDict()
    for name, head in heads.items():
        if hasattr(named, name):
            raise SettingsError(f"heads.{name}: this name is taken by PyTorch; choose another, such as {name}_head")
        named[name] = head
    return named
