"""Embeddings and pooling."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import settings
from regard.blocks.experts import autocast_dtype
from regard.blocks.layers import build_norm
from regard.blocks.layout import Layout, Packed, Padded, readable, require_images
from regard.blocks.positions import Grid, GridPosition, Position, build_embedded
from regard.blocks.recording import EMBEDDING_TAPS, tap
from regard.blocks.settings import PoolingKind
from regard.errors import InputError


def check_range(numbers: Tensor, size: int, what: str) -> None:
    """Raises for indices outside of an embedding.

    On a GPU and in compiled code indices are not read; there PyTorch's own check stops the program.
    """
    if numbers.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{what} indices have dtype {numbers.dtype}, expected int64; convert them with .long()")
    if not readable(numbers):
        return
    least, most = int(numbers.min()), int(numbers.max())
    if least < 0 or most >= size:
        problem = f"{what} {least if least < 0 else most} is out of range: the model has indices from 0 to {size - 1}"
        raise InputError(f"{problem}; use the tokenizer that the model was trained with")


class TextEmbedding(nn.Module):
    """Token + segment + position embeddings, then norm and dropout, as the settings define."""

    def __init__(
        self,
        tokens: nn.Embedding,
        position: settings.TextPosition,
        scaled: bool,
        norm: settings.Norm | None,
        dropout: float,
        segments: int = 0,
        projected: int | None = None,
    ) -> None:
        """`tokens` is an argument, since several embeddings may share it. A layer maps them to size `projected`."""
        super().__init__()
        width = tokens.embedding_dim
        self.tokens = tokens
        self.segments = nn.Embedding(segments, width) if segments else None
        self.position = build_embedded(position, width)
        self.taps = EMBEDDING_TAPS[: 1 if type(self.position).embed is Position.embed else 2]
        self.norm = None if norm is None else build_norm(norm, width)
        self.project = None if projected is None else nn.Linear(width, projected)
        self.scale = math.sqrt(width) if scaled else 1.0
        self.dropout = dropout

    def forward(
        self, tokens: Tensor, layout: Layout, segments: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """`[B, T]` or `[N]` indices to `[..., D]` vectors.

        `seen` are factors of the tokens; those with 0 keep only their position (Shen et al. 2020: token cutoff).
        """
        check_range(tokens, self.tokens.num_embeddings, "token")
        x = self.tokens(tokens)
        if seen is not None:
            x = x * seen[..., None]
        if self.scale != 1.0:
            x = x * self.scale
        x = tap(self, "tokens", x)
        if self.segments is not None:
            if segments is None:
                x = x + self.segments.weight[0]
            else:
                check_range(segments, self.segments.num_embeddings, "segment")
                x = x + self.segments(segments)
        position = self.position.embed(layout, x.device, x.dtype)
        if position is not None:
            x = x + tap(self, "positions", position)
        x = x if self.norm is None else self.norm(x)
        x = functional.dropout(x, self.dropout, self.training)
        return x if self.project is None else self.project(x)


class PatchEmbedding(nn.Module):
    """Cuts an image into patches and projects each to a vector; adds a class token, registers and positions."""

    def __init__(
        self,
        channels: int,
        patch: int,
        width: int,
        position: GridPosition,
        dropout: float,
        bias: bool = True,
        norm: settings.Norm | None = None,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, kernel_size=patch, stride=patch, bias=bias)
        self.class_token = nn.Parameter(torch.empty(width)) if position.class_token else None
        self.registers = nn.Parameter(torch.empty(position.registers, width)) if position.registers else None
        self.norm = None if norm is None else build_norm(norm, width)
        self.position = position
        self.taps = EMBEDDING_TAPS[: 1 if type(position).embed is GridPosition.embed else 2]
        self.patch, self.dropout = patch, dropout

    def grid(self, images: Tensor) -> Grid:
        """Rows and columns of patches; raises if an image is not a multiple of the patch size."""
        require_images(images, self.patches.in_channels)
        height, width = images.shape[-2:]
        if height % self.patch or width % self.patch:
            raise InputError(f"images of {height} × {width} pixels are not multiples of patch ({self.patch}); resize")
        return height // self.patch, width // self.patch

    def forward(self, images: Tensor) -> Tensor:
        """`[B, C, height, width]` to `[B, T, D]`: the class token, the registers, the patches."""
        grid = self.grid(images)
        # The convolution as one product of matrices: on a GPU, cuDNN's takes several times as long.
        cut = images.reshape(*images.shape[:2], grid[0], self.patch, grid[1], self.patch).permute(0, 2, 4, 1, 3, 5)
        weight = self.patches.weight
        x_BTD = functional.linear(cut.flatten(3).flatten(1, 2), weight.flatten(1), self.patches.bias).to(weight.dtype)
        learned = [] if self.class_token is None else [self.class_token[None]]
        learned += [] if self.registers is None else [self.registers]
        if learned:
            x_BTD = torch.cat([torch.cat(learned).expand(len(images), -1, -1), x_BTD], dim=1)
        x_BTD = tap(self, "tokens", x_BTD)
        position = self.position.embed(grid, x_BTD.device, x_BTD.dtype)
        if position is not None:
            x_BTD = x_BTD + tap(self, "positions", position)
        x_BTD = x_BTD if self.norm is None else self.norm(x_BTD)
        # In mixed precision, sums of layers in bfloat16 too: ViT-S/16 trains 7 % faster on an H200.
        if autocast_dtype(x_BTD) == torch.bfloat16:
            x_BTD = x_BTD.bfloat16()
        return functional.dropout(x_BTD, self.dropout, self.training)


def pool(x: Tensor, layout: Layout, kind: PoolingKind) -> Tensor:
    """`[B, D]` from `[B, T, D]`, or `[S, D]` from `[N, D]`: the first or last token, mean or maximum of each sequence.

    An empty sequence gives zero.
    """
    if not x.shape[:-1].numel():  # no token at all, as when every packed sequence is empty
        return x.new_zeros(layout.count, x.shape[-1])
    return _pool_packed(x, layout, kind) if isinstance(layout, Packed) else _pool_padded(x, layout, kind)


def _pool_padded(x_BTD: Tensor, layout: Padded, kind: PoolingKind) -> Tensor:
    real = layout.real(x_BTD.device)
    real_BT1 = x_BTD.new_ones(layout.shape, dtype=torch.bool)[..., None] if real is None else real[..., None]
    if kind == "class":
        return x_BTD[:, 0] * real_BT1[:, 0]
    if kind == "last":
        last_B = real_BT1[..., 0].sum(1).clamp(min=1) - 1
        return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), last_B] * real_BT1[:, 0]
    if kind == "mean":
        return x_BTD.masked_fill(~real_BT1, 0.0).sum(1) / real_BT1.sum(1).clamp(min=1)
    most_BD = x_BTD.masked_fill(~real_BT1, -torch.inf).amax(1)
    return most_BD.masked_fill(~real_BT1.any(1), 0.0)


def _pool_packed(x_ND: Tensor, layout: Packed, kind: PoolingKind) -> Tensor:
    lengths_S1 = layout.offsets_S1.diff()[:, None]
    sequence_ND = layout.sequences(x_ND.device)[:, None].expand_as(x_ND)
    empty_SD = x_ND.new_zeros(layout.count, x_ND.shape[-1])
    if kind in ("class", "last"):
        edges_S = layout.offsets_S1[:-1] if kind == "class" else layout.offsets_S1[1:] - 1
        return x_ND[edges_S.clamp(min=0, max=layout.tokens - 1)] * (lengths_S1 > 0)
    if kind == "mean":
        return empty_SD.scatter_add(0, sequence_ND, x_ND) / lengths_S1.clamp(min=1)
    return empty_SD.scatter_reduce(0, sequence_ND, x_ND, "amax", include_self=False)
