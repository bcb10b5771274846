"""Convolutional stacks for sequences (Gehring et al. 2017: ConvS2S), with the interface of `Stack`.

A layer is a gated convolution over neighbouring tokens with a residual connection. In the decoder it sees earlier
tokens only, and attends to the encoder's output.

B: batch, T: target tokens, S: source tokens, K: beams of an input, N = B × K, D: width, W: width of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import recording
from regard.blocks.cache import StateCache
from regard.blocks.layout import Layout, Padded, repacked, unpacked
from regard.blocks.recording import tap
from regard.models import settings
from regard.models.recurrent import StateAttention

HALF = math.sqrt(0.5)
"""Factor on a sum of two, so that its variance stays that of each."""


class ConvolutionalLayer(nn.Module):
    """x + GLU(convolution(x)); in a decoder, attention is added in between."""

    taps = (recording.LAYER_TAP,)
    __call__: Callable[..., Tensor]

    def __init__(self, model: settings.Convolutional, cross: bool) -> None:
        super().__init__()
        width = model.width
        self.convolution = nn.Conv1d(width, 2 * width, model.kernel)
        self.dropout = model.dropout
        self.ask, self.answer = (nn.Linear(width, width) if cross else None for _ in range(2))
        self.cross = StateAttention(model.attention, width) if cross else None

    def forward(
        self,
        x_NTD: Tensor,
        before: tuple[Tensor, Tensor],
        attend: Callable[[ConvolutionalLayer, Tensor], Tensor] | None,
    ) -> Tensor:
        """`before` are the cells on both sides of x, `[N, …, D]`, as many as the kernel needs."""
        cells_NCD = torch.cat([before[0], x_NTD, before[1]], dim=1)
        cells_NCD = functional.dropout(cells_NCD, self.dropout, self.training)
        gated_NTD = functional.glu(self.convolution(cells_NCD.mT), dim=1).mT
        if attend is not None:
            gated_NTD = (gated_NTD + attend(self, gated_NTD)) * HALF
        return tap(self, "residual", (x_NTD + gated_NTD) * HALF)


class ConvolutionalEncoder(nn.ModuleList):
    """`[..., 2 D]`: the output of the last layer (keys), and its sum with the embeddings (values)."""

    first_taps = (recording.STACK_INPUT,)
    taps = (recording.STACK_OUTPUT,)
    __call__: Callable[..., Tensor]

    def __init__(self, model: settings.Convolutional) -> None:
        super().__init__([ConvolutionalLayer(model, cross=False) for _ in range(model.depth)])
        self.sides = (model.kernel - 1) // 2, model.kernel // 2

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        embedded_BSD, padded = unpacked(tap(self, "residual", x), layout)
        real = padded.real(x.device)
        x_BSD = embedded_BSD
        edges = tuple(x_BSD.new_zeros(len(x_BSD), cells, x_BSD.shape[-1]) for cells in self.sides)
        for layer in self:
            x_BSD = layer(x_BSD if real is None else x_BSD * real[..., None], edges, None)
        x_BSD = tap(self, "out", x_BSD)
        return repacked(torch.cat([x_BSD, (x_BSD + embedded_BSD) * HALF], dim=-1), layout)


class ConvolutionalDecoder(nn.ModuleList):
    """Layers that see earlier tokens and the source."""

    first_taps = (recording.STACK_INPUT,)
    taps = (recording.STACK_OUTPUT,)
    __call__: Callable[..., Tensor]
    __iter__: Callable[..., Iterator[Any]]

    def __init__(self, model: settings.Convolutional) -> None:
        super().__init__([ConvolutionalLayer(model, cross=True) for _ in range(model.decoder_layers)])
        self.earlier = model.kernel - 1

    def new_cache(self, batch: int, longest: int | None = None, steps: int | None = None, beams: int = 1) -> StateCache:
        """An empty cache for `batch` sequences. Its memory is never fixed, whatever `steps` and `beams` are."""
        return StateCache(batch, next(self.parameters()).device, longest)

    def forward(
        self,
        x: Tensor,
        queries: Layout,
        keys: Layout | None = None,
        memory: Tensor | None = None,
        memory_layout: Layout | None = None,
        cache: StateCache | None = None,
    ) -> Tensor:
        """`[..., D]`, as `Stack.forward`. `memory` is read in the first call with a cache only."""
        assert memory is not None and memory_layout is not None
        embedded_BTD, layout = unpacked(tap(self, "residual", x), queries)
        source = unpacked(memory, memory_layout)
        first = cache is None or cache.time == 0
        sources = {"memory": source[0]} if cache is None or first else cache.sources
        x_NTD = embedded_BTD if first else embedded_BTD.flatten(0, 1)[:, None]
        attend = _attending(sources["memory"], source[1], embedded_BTD, layout)
        none_N0D = x_NTD[:, :0]
        beams: dict[str, Tensor] = {}
        for number, layer in enumerate(self):
            name = str(number)
            if cache is None or first:
                earlier_NWD = x_NTD.new_zeros(len(x_NTD), self.earlier, x_NTD.shape[-1])
            else:
                earlier_NWD = cache.beams[name]
            cells_NCD = torch.cat([earlier_NWD, x_NTD], dim=1)
            beams[name] = cells_NCD[:, cells_NCD.shape[1] - self.earlier :]
            x_NTD = layer(x_NTD, (earlier_NWD, none_N0D), attend)
        if cache is not None:
            cache.sources, cache.beams = sources, beams
            cache.time += layout.time if first else 1
        return tap(self, "out", repacked(x_NTD.reshape(*layout.shape, -1), queries))


def _attending(
    memory_BSX: Tensor, source: Padded, embedded_BTD: Tensor, queries: Padded
) -> Callable[[ConvolutionalLayer, Tensor], Tensor]:
    """What a layer adds to its states: attention of state and embedding to the source, times √S as in the paper."""
    keys_BSD, values_BSD = memory_BSX.chunk(2, dim=-1)
    sizes_B = memory_BSX.new_full((1,), source.time) if source.lengths_B is None else source.lengths_B
    factor_B11 = sizes_B.to(memory_BSX.dtype).sqrt()[:, None, None]

    def attend(layer: ConvolutionalLayer, x_NTD: Tensor) -> Tensor:
        assert layer.ask is not None and layer.answer is not None and layer.cross is not None
        asked_BTD = (layer.ask(x_NTD).reshape(embedded_BTD.shape) + embedded_BTD) * HALF
        context_BTD = layer.cross(asked_BTD, keys_BSD, values_BSD, queries, source) * factor_B11
        answer: Tensor = layer.answer(context_BTD).reshape(x_NTD.shape)
        return answer

    return attend


class ResNetBlock(nn.Module):
    """x + f(x), f: norm, ReLU, convolution, twice (He et al. 2016: identity mappings)."""

    taps = (recording.LAYER_TAP,)
    __call__: Callable[..., Tensor]

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)])
        stride = 1 if inputs == outputs else 2
        sizes = ((inputs, outputs, stride), (outputs, outputs, 1))
        self.convolutions = nn.ModuleList([nn.Conv2d(a, b, 3, by, padding=1, bias=False) for a, b, by in sizes])
        self.skip = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.dropout = dropout

    def forward(self, x_BDHW: Tensor) -> Tensor:
        added = x_BDHW
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            added = convolution(functional.relu(norm(added)))
        added = functional.dropout(added, self.dropout, self.training)
        x_BDHW = added + (x_BDHW if self.skip is None else self.skip(x_BDHW))
        tap(self, "residual", x_BDHW.flatten(2).mT)
        return x_BDHW


class ResNetStack(nn.Module):
    """Three stages of residual blocks: `[B, cells, D]` for images `[B, C, height, width]`."""

    taps = (recording.STACK_OUTPUT,)
    __call__: Callable[..., Tensor]

    def __init__(self, model: settings.ResNet) -> None:
        super().__init__()
        widths = [model.width // 4, model.width // 2, model.width]
        self.stem = nn.Conv2d(model.channels, widths[0], 3, padding=1, bias=False)
        outputs = [width for width in widths for _ in range(model.depth)]
        for number, (before, after) in enumerate(zip([widths[0], *outputs], outputs, strict=False)):
            self.add_module(str(number), ResNetBlock(before, after, model.dropout))
        self.blocks = len(outputs)
        self.norm = nn.GroupNorm(8, model.width)

    def forward(self, images: Tensor) -> Tensor:
        x_BDHW: Tensor = self.stem(images)
        for number in range(self.blocks):
            x_BDHW = self.get_submodule(str(number))(x_BDHW)
        return tap(self, "out", functional.relu(self.norm(x_BDHW)).flatten(2).mT)
