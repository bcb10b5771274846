"""Layouts: how the sequences of a batch are arranged in a tensor.

Padded is `[B, T, ...]`, one sequence in each row. Packed is `[N, ...]`, all sequences one after the other without
padding. Only attention and positions depend on the layout: it gives the position of each token in its sequence, and the
sequence of each token.

Layouts are immutable values that are created outside of a compiled model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from regard.errors import InputError


@dataclass(frozen=True)
class Padded:
    """`[B, T]`: sequence b is row b. Without lengths or places, every cell is a real token."""

    batch: int
    time: int
    lengths_B: Tensor | None = None
    """Number of real tokens of each row; the cells after them are padding."""
    places_BT: Tensor | None = None
    """The position of each cell in its sequence, −1 for padding; instead of lengths, if cells are not in order."""
    bound: int | None = None
    """An upper bound of all positions; none: time."""

    def __post_init__(self) -> None:
        lengths_B = self.lengths_B
        if lengths_B is None:
            return
        if tuple(lengths_B.shape) != (self.batch,) or lengths_B.is_floating_point():
            given = f"shape {list(lengths_B.shape)} and dtype {lengths_B.dtype}"
            raise InputError(f"lengths have {given}, expected [{self.batch}] integers: give one for each row")
        if readable(lengths_B) and not 0 <= int(lengths_B.min()) <= int(lengths_B.max()) <= self.time:
            raise InputError(f"lengths ({lengths_B.tolist()}) must be between 0 and time ({self.time})")

    @staticmethod
    def of(lengths_B: Tensor, time: int | None = None) -> Padded:
        """The layout of right-padded rows. Without `time`, the longest length is read, which waits for a GPU."""
        longest = int(lengths_B.max()) if time is None and len(lengths_B) else 0
        return Padded(len(lengths_B), longest if time is None else time, lengths_B)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.batch, self.time

    @property
    def longest(self) -> int:
        """A bound on the length of every sequence, known without reading tensors."""
        return self.time if self.bound is None else self.bound

    def to(self, device: torch.device | str) -> Padded:
        return self._changed(lambda x: x.to(device))

    def twice(self) -> Padded:
        """The layout of a batch followed by itself."""
        return self._changed(lambda x: torch.cat([x, x]), 2)

    def _changed(self, change: Callable[[Tensor], Tensor], times: int = 1) -> Padded:
        lengths, places = (None if x is None else change(x) for x in (self.lengths_B, self.places_BT))
        return replace(self, batch=times * self.batch, lengths_B=lengths, places_BT=places)

    def real(self, device: torch.device) -> Tensor | None:
        """`[B, T]`, true for real tokens; None if all are real."""
        if self.places_BT is not None:
            return self.places_BT >= 0
        if self.lengths_B is None:
            return None
        return torch.arange(self.time, device=device) < self.lengths_B[:, None]

    def places(self, device: torch.device) -> Tensor:
        """`[B or 1, T]`: the position of each cell in its sequence; −1 for padding."""
        if self.places_BT is not None:
            return self.places_BT
        places_1T = torch.arange(self.time, device=device)[None]
        real = self.real(device)
        return places_1T if real is None else torch.where(real, places_1T, -1)

    def sequences(self, device: torch.device) -> Tensor:
        """`[B, T]`: which sequence each cell belongs to."""
        return torch.arange(self.batch, device=device)[:, None].expand(self.batch, self.time)

    @property
    def rows(self) -> int:
        return self.batch

    count = rows


@dataclass(frozen=True)
class Packed:
    """`[N]`: sequence s fills the tokens from `offsets[s]` to `offsets[s + 1]`.

    The offsets cover every token, so that all batches can have the same shape: unused tokens at the end of a row are a
    sequence that no loss reads, and empty sequences (repeated offsets) fill up the count.
    """

    tokens: int
    offsets_S1: Tensor
    longest: int
    """A bound on the length of every sequence; constant, so that no batch causes a recompilation."""
    width: int | None = None
    """Width of rows that no sequence crosses; none: one row. Rows save scores on a CPU."""
    fillers: int = 0
    """How many of the last sequences of each row are padding."""

    def __post_init__(self) -> None:
        if self.width is not None and self.tokens % self.width:
            raise InputError(f"tokens ({self.tokens}) must be a multiple of width ({self.width}); pad the last row")
        if not readable(self.offsets_S1):
            return
        offsets = self.offsets_S1.numpy()
        starts, ends = offsets[:-1], offsets[1:]
        lengths = ends - starts
        if offsets[0] != 0 or offsets[-1] != self.tokens or lengths.min(initial=0) < 0:
            raise InputError(f"offsets ({offsets.tolist()}) must rise from 0 to tokens ({self.tokens})")
        if (longest := lengths.max(initial=0)) > self.longest:
            raise InputError(f"a sequence of {longest} tokens is longer than longest ({self.longest}); raise longest")
        if self.width is not None and ((starts // self.width != (ends - 1) // self.width) & (lengths > 0)).any():
            raise InputError(f"offsets ({offsets.tolist()}) make a sequence cross a row of width {self.width}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.tokens,)

    @property
    def rows(self) -> int:
        return 1 if self.width is None else self.tokens // self.width

    @property
    def count(self) -> int:
        """Number of sequences, empty ones and padding included."""
        return len(self.offsets_S1) - 1

    def to(self, device: torch.device | str) -> Packed:
        return replace(self, offsets_S1=self.offsets_S1.to(device))

    def twice(self) -> Packed:
        """The layout of a batch followed by itself."""
        offsets = torch.cat([self.offsets_S1, self.offsets_S1[1:] + self.tokens])
        return Packed(2 * self.tokens, offsets, self.longest, self.width, self.fillers)

    def real(self, device: torch.device) -> Tensor | None:
        """`[N]`, true for real tokens; None if all are real."""
        each = self.count // self.rows
        return self.sequences(device) % each < each - self.fillers if self.fillers else None

    def sequences(self, device: torch.device) -> Tensor:
        """`[N]`: which sequence each token belongs to."""
        index = torch.arange(self.tokens, device=device, dtype=self.offsets_S1.dtype)
        # Not over offsets[1:]: compiled for a GPU (PyTorch 2.11), searchsorted forgets where a slice begins.
        return torch.searchsorted(self.offsets_S1, index, right=True) - 1

    def places(self, device: torch.device) -> Tensor:
        """`[N]`: the position of each token in its sequence."""
        starts_N = self.offsets_S1[self.sequences(device)]
        return torch.arange(self.tokens, device=device) - starts_N


Layout: TypeAlias = Padded | Packed


def readable(tensor: Tensor) -> bool:
    """Whether reading its values is free: it would wait for a GPU, and break a compiled graph."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu" and bool(tensor.numel())


def require_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise InputError(f"{name} is of type {type(value).__name__}, expected a tensor; write torch.tensor({name})")


def require_images(images: object, channels: int) -> None:
    require_tensor(images, "images")
    assert isinstance(images, Tensor)
    if images.dim() != 4 or images.shape[1] != channels:
        raise InputError(f"images have shape {list(images.shape)}, expected [batch, {channels}, height, width]")


def layout_of(tokens: Tensor, layout: Layout | None) -> Layout:
    """The given layout, checked against the tensor; by default that of a batch without padding."""
    require_tensor(tokens, "tokens")
    if layout is None:
        if tokens.dim() != 2:
            raise InputError(f"tokens of shape {list(tokens.shape)} need a layout; give [batch, time], or Packed")
        return Padded(*tokens.shape)
    if not isinstance(layout, Padded | Packed):
        raise InputError(f"layout ({type(layout).__name__}) must be Padded or Packed; use Padded.of(lengths, time)")
    if tuple(tokens.shape) != layout.shape:
        raise InputError(f"tokens have shape {list(tokens.shape)}, but the layout has shape {list(layout.shape)}")
    return layout


def unpacked(x: Tensor, layout: Layout) -> tuple[Tensor, Padded]:
    """`[B, T, ...]` and its layout. Packed sequences get a row each; their longest length is read from the device."""
    if isinstance(layout, Padded):
        return x, layout
    lengths_S = layout.offsets_S1.diff()
    time = int(lengths_S.max())
    rows = x.new_zeros(layout.count, time, *x.shape[1:])
    rows = rows.index_put((layout.sequences(x.device), layout.places(x.device)), x)
    return rows, Padded(layout.count, time, lengths_S)


def repacked(x_BT: Tensor, layout: Layout) -> Tensor:
    """The reverse of `unpacked`."""
    if isinstance(layout, Padded):
        return x_BT
    return x_BT[layout.sequences(x_BT.device), layout.places(x_BT.device)]
