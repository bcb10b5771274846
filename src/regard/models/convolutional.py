"""Convolutional stacks for sequences (Gehring et al. 2017: ConvS2S), with the interface of `Stack`.

A layer is a gated convolution over neighbouring tokens with a residual connection. In the decoder it sees earlier
tokens only, and attends to the encoder's output.

B: batch, T: target tokens, S: source tokens, K: beams of an input, N = B × K, D: width, W: width of the kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import recording
from regard.blocks.layout import Layout, Padded, repacked, unpacked
from regard.blocks.recording import Tapped, TappedStack, tap
from regard.models import settings
from regard.models.recurrent import StateAttention, StateDecoder, States

HALF = math.sqrt(0.5)
"""Factor on a sum of two, so that its variance stays that of each."""


class ConvolutionalLayer(Tapped):
    """x + GLU(convolution(x)); in a decoder, attention is added in between."""

    taps = (recording.LAYER_TAP,)

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
        asked: tuple[Tensor, Tensor, Padded, Padded] | None = None,
    ) -> Tensor:
        """`before` are the cells on both sides of x, `[N, …, D]`, as many as the kernel needs; see also `attend`."""
        cells_NCD = torch.cat([before[0], x_NTD, before[1]], dim=1)
        cells_NCD = functional.dropout(cells_NCD, self.dropout, self.training)
        gated_NTD = functional.glu(self.convolution(cells_NCD.mT), dim=1).mT
        if asked is not None:
            gated_NTD = (gated_NTD + self.attend(gated_NTD, *asked)) * HALF
        return tap(self, "residual", (x_NTD + gated_NTD) * HALF)

    def attend(
        self, x_NTD: Tensor, embedded_BTD: Tensor, memory_BSX: Tensor, queries: Padded, source: Padded
    ) -> Tensor:
        """Attention of state and embedding to the source, times √S as in the paper."""
        assert self.ask is not None and self.answer is not None and self.cross is not None
        keys_BSD, values_BSD = memory_BSX.chunk(2, dim=-1)
        sizes_B = memory_BSX.new_full((1,), source.time) if source.lengths_B is None else source.lengths_B
        asked_BTD = (self.ask(x_NTD).reshape(embedded_BTD.shape) + embedded_BTD) * HALF
        context_BTD = self.cross(asked_BTD, keys_BSD, values_BSD, queries, source)
        answer: Tensor = self.answer(context_BTD * sizes_B.to(memory_BSX.dtype).sqrt()[:, None, None])
        return answer.reshape(x_NTD.shape)


class ConvolutionalEncoder(TappedStack):
    """`[..., 2 D]`: the output of the last layer (keys), and its sum with the embeddings (values)."""

    def __init__(self, model: settings.Convolutional) -> None:
        super().__init__([ConvolutionalLayer(model, cross=False) for _ in range(model.depth)])
        self.sides = (model.kernel - 1) // 2, model.kernel // 2

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        embedded_BSD, padded = unpacked(tap(self, "residual", x), layout)
        real = padded.real(x.device)
        x_BSD = embedded_BSD
        edges = tuple(x_BSD.new_zeros(len(x_BSD), cells, x_BSD.shape[-1]) for cells in self.sides)
        for layer in self:
            x_BSD = layer(x_BSD if real is None else x_BSD * real[..., None], edges)
        x_BSD = tap(self, "out", x_BSD)
        return repacked(torch.cat([x_BSD, (x_BSD + embedded_BSD) * HALF], dim=-1), layout)


class ConvolutionalDecoder(StateDecoder):
    """Layers that see earlier tokens and the source. The state of a layer is its last inputs."""

    def __init__(self, model: settings.Convolutional) -> None:
        super().__init__([ConvolutionalLayer(model, cross=True) for _ in range(model.decoder_layers)])
        self.earlier = model.kernel - 1

    def read(self, memory_BSX: Tensor, source: Padded) -> tuple[States, States]:
        before_BWD = memory_BSX.new_zeros(len(memory_BSX), self.earlier, memory_BSX.shape[-1] // 2)
        return {"memory": memory_BSX}, {str(number): before_BWD for number in range(len(self))}

    def step(
        self, x_NTD: Tensor, states: States, sources: States, queries: Padded, source: Padded
    ) -> tuple[Tensor, States]:
        asked = x_NTD.reshape(*queries.shape, -1), sources["memory"], queries, source
        none_N0D, after = x_NTD[:, :0], States()
        for layer, (name, earlier_NWD) in zip(self, states.items(), strict=True):
            after[name] = torch.cat([earlier_NWD, x_NTD], dim=1)[:, x_NTD.shape[1] :]
            x_NTD = layer(x_NTD, (earlier_NWD, none_N0D), asked)
        return x_NTD, after


class ResNetBlock(Tapped):
    """x + f(x), f: norm, ReLU, convolution, twice (He et al. 2016: identity mappings)."""

    taps = (recording.LAYER_TAP,)

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


class ResNetStack(Tapped):
    """Three stages of residual blocks: `[B, cells, D]` for images `[B, C, height, width]`."""

    taps = (recording.STACK_OUTPUT,)

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
