"""Recurrent stacks: an LSTM or GRU encoder, and a decoder that attends to its states.

They have the interface of `Stack`, so an encoder-decoder of any kind has the same tasks, searches and recordings. The
decoder counts as one layer with one attention, `decoder.0.cross`.

B: batch, T: target tokens, S: source tokens, K: beams of an input, N = B × K, D: width, L: layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.blocks import recording
from regard.blocks.cache import StateCache
from regard.blocks.embedding import pool
from regard.blocks.kernels import masked_softmax, mix
from regard.blocks.layout import Layout, Padded, repacked, unpacked
from regard.blocks.recording import Tapped, TappedStack, tap
from regard.blocks.settings import StateAttention as StateAttentionSettings
from regard.blocks.visibility import Visibility
from regard.models import settings

States: TypeAlias = dict[str, Tensor]
_CELLS: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class StateAttention(Tapped):
    """One attention over the encoder's states, by dot, general or additive score. Weights are computed, not derived."""

    taps = tuple(tap for tap in recording.ATTENTION_TAPS if tap.name in ("scores", "weights", "heads"))

    def __init__(self, attention: StateAttentionSettings, width: int) -> None:
        super().__init__()
        self.window = attention.window
        additive = attention.score == "additive"
        self.q = nn.Linear(width, width) if additive else None
        self.k = None if attention.score == "dot" else nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, 1, bias=False) if additive else None

    def keys(self, memory_BSD: Tensor) -> Tensor:
        """`[B, S, D]`, computed once for each source."""
        return memory_BSD if self.k is None else self.k(memory_BSD)

    def forward(self, x_BTD: Tensor, keys_BSD: Tensor, values_BSD: Tensor, queries: Padded, source: Padded) -> Tensor:
        """`[B, T, D]`: for each query the mean of the values, by their weights; zero if it sees none."""
        visibility = Visibility(queries, source, window=self.window)
        if self.q is None or self.v is None:
            scores_BTS = x_BTD @ keys_BSD.mT
        else:
            scores_BTS = self.v(torch.tanh(self.q(x_BTD)[:, :, None] + keys_BSD[:, None]))[..., 0]
        visible_B1TS = visibility.visible(x_BTD.device)[:, None]
        scores_B1TS = tap(self, "scores", scores_BTS[:, None].masked_fill(~visible_B1TS, -torch.inf))
        weights_B1TS = tap(self, "weights", masked_softmax(scores_B1TS, scores_B1TS != -torch.inf))
        return tap(self, "heads", mix(weights_B1TS, values_BSD[:, :, None], visibility))[:, :, 0]


class RecurrentEncoder(TappedStack):
    """The states of an LSTM or GRU, `[..., D]`; of two directions, half of D each."""

    def __init__(self, model: settings.Recurrent | settings.ImageLstm) -> None:
        width = model.width // (1 + model.bidirectional)
        rest: dict[str, Any] = {"batch_first": True, "bidirectional": model.bidirectional}
        dropout = model.dropout if model.depth > 1 else 0.0
        super().__init__([_CELLS[model.cell](model.width, width, model.depth, dropout=dropout, **rest)])

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        x_BSD, padded = unpacked(tap(self, "residual", x), layout)
        recurrent: Any = self[0]
        if padded.lengths_B is None or not recurrent.bidirectional:
            states_BSD: Tensor = recurrent(x_BSD)[0]
        else:
            # The second direction starts at the last real token. A row of padding only is read as one token.
            lengths = padded.lengths_B.clamp(min=1).cpu()
            cells = pack_padded_sequence(x_BSD, lengths, batch_first=True, enforce_sorted=False)
            states_BSD = pad_packed_sequence(recurrent(cells)[0], batch_first=True, total_length=padded.time)[0]
        return tap(self, "out", repacked(states_BSD, layout))


class RecurrentLayers(nn.Module):
    """All layers of a recurrent decoder, with the attention between the first layer and the others."""

    taps = (recording.LAYER_TAP,)
    __call__: Callable[..., tuple[Tensor, States]]

    def __init__(self, model: settings.Recurrent) -> None:
        super().__init__()
        width, depth, cell = model.width, model.decoder_layers, _CELLS[model.cell]
        self.both_ways, self.score, self.dropout = model.bidirectional, model.attention.score, model.dropout
        self.cross = None if self.score in ("last", "sum") else StateAttention(model.attention, width)
        self.start = nn.Linear(width, depth * width)
        """From the summary of the source to the first state of each layer."""
        self.first = cell(width, width, batch_first=True)
        inner = model.dropout if depth > 2 else 0.0
        self.others = cell(2 * width, width, depth - 1, batch_first=True, dropout=inner) if depth > 1 else None
        self.join = nn.Linear(2 * width, width)

    def summary(self, memory_BSD: Tensor, layout: Padded) -> Tensor:
        """`[B, D]`: the last state of each direction, or the sum of all states."""
        if self.score == "sum":
            real = layout.real(memory_BSD.device)
            return (memory_BSD if real is None else memory_BSD * real[..., None]).sum(1)
        last_BD = pool(memory_BSD, layout, "last")
        if not self.both_ways:
            return last_BD
        half = last_BD.shape[-1] // 2
        return torch.cat([last_BD[:, :half], pool(memory_BSD, layout, "class")[:, half:]], dim=-1)

    def read(self, memory_BSD: Tensor, layout: Padded) -> tuple[States, States]:
        """See `StateDecoder`. The states are `[B, L, D]`."""
        summary_BD = self.summary(memory_BSD, layout)
        sources = {"summary": summary_BD}
        if self.cross is not None:
            sources = {"keys": self.cross.keys(memory_BSD), "values": memory_BSD}
        hidden_BLD = torch.tanh(self.start(summary_BD)).view(len(summary_BD), -1, summary_BD.shape[-1])
        return sources, {"hidden": hidden_BLD, "cell": torch.zeros_like(hidden_BLD)}

    def forward(
        self, x_NTD: Tensor, states: States, sources: States, queries: Padded, source: Padded
    ) -> tuple[Tensor, States]:
        """`StateDecoder.step`."""
        query_NTD, first = _advance(self.first, x_NTD, {name: x[:, :1] for name, x in states.items()})
        if self.cross is None:
            context_BTD = sources["summary"][:, None].expand(-1, queries.time, -1)
        else:
            query_BTD = query_NTD.reshape(*queries.shape, -1)
            context_BTD = self.cross(query_BTD, sources["keys"], sources["values"], queries, source)
        context_NTD = context_BTD.reshape(query_NTD.shape)
        top_NTD, after = query_NTD, [first]
        if self.others is not None:
            both = functional.dropout(torch.cat([query_NTD, context_NTD], dim=-1), self.dropout, self.training)
            top_NTD, others = _advance(self.others, both, {name: x[:, 1:] for name, x in states.items()})
            after.append(others)
        joined_NTD = torch.tanh(self.join(torch.cat([top_NTD, context_NTD], dim=-1)))
        joined_NTD = functional.dropout(tap(self, "residual", joined_NTD), self.dropout, self.training)
        return joined_NTD, {name: torch.cat([each[name] for each in after], dim=1) for name in first}


def _advance(recurrent: nn.LSTM | nn.GRU, x_NTD: Tensor, states: States) -> tuple[Tensor, States]:
    """The outputs `[N, T, D]` of some layers, and their states `[N, L, D]`."""
    hidden, cell = (states[name].transpose(0, 1).contiguous() for name in ("hidden", "cell"))
    if isinstance(recurrent, nn.LSTM):
        out_NTD, (hidden, cell) = recurrent(x_NTD, (hidden, cell))
    else:
        out_NTD, hidden = recurrent(x_NTD, hidden)
    return out_NTD, {"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)}


class StateDecoder(TappedStack):
    """A decoder that keeps states instead of keys and values."""

    read: Callable[..., tuple[States, States]]
    """From `[B, S, D]` and its layout: what steps need of a source, and the states before the first step."""
    step: Callable[..., tuple[Tensor, States]]
    """From `[N, T, D]`, states, sources and the layouts of both sides: outputs `[N, T, D]` and the states after them.
    There are several beams of an input only if T is 1."""

    def new_cache(self, batch: int, longest: int | None = None, steps: int | None = None, beams: int = 1) -> StateCache:
        """An empty cache for `batch` sequences. Its memory is never fixed, whatever `steps` and `beams` are."""
        return StateCache(batch, next(self.parameters()).device, longest)

    def forward(
        self, x: Tensor, queries: Layout, keys: Layout, memory: Tensor, source: Layout, cache: StateCache | None = None
    ) -> Tensor:
        """`[..., D]`, as `Stack.forward`. `memory` is read in the first call with a cache only."""
        x_NTD, layout = unpacked(tap(self, "residual", x), queries)
        memory_BSX, source = unpacked(memory, source)
        if cache is None or cache.time == 0:
            sources, states = self.read(memory_BSX, source)
        else:
            sources, states, x_NTD = cache.sources, cache.beams, x_NTD.flatten(0, 1)[:, None]
        x_NTD, states = self.step(x_NTD, states, sources, layout, source)
        if cache is not None:
            cache.sources, cache.beams = sources, states
            cache.time += 1 if cache.time else layout.time
        return tap(self, "out", repacked(x_NTD.reshape(*layout.shape, -1), queries))


class RecurrentDecoder(StateDecoder):
    """The decoder as a stack of one layer."""

    __getitem__: Callable[..., RecurrentLayers]

    def __init__(self, model: settings.Recurrent) -> None:
        super().__init__([RecurrentLayers(model)])

    def read(self, memory_BSD: Tensor, source: Padded) -> tuple[States, States]:
        return self[0].read(memory_BSD, source)

    def step(self, *given: Any) -> tuple[Tensor, States]:
        return self[0](*given)


class ElmoLayer(Tapped):
    """One LSTM for each direction, with a residual connection from the second layer on."""

    taps = (recording.LAYER_TAP,)

    def __init__(self, model: settings.Elmo, residual: bool) -> None:
        super().__init__()
        half = model.width // 2
        self.ahead, self.back = (nn.LSTM(half, half, batch_first=True) for _ in range(2))
        self.residual, self.dropout = residual, model.dropout

    def forward(self, x_BTD: Tensor, reverse: Callable[[Tensor], Tensor]) -> Tensor:
        """`[B, T, D]`: the first half of D depends on a token and those before it, the second on it and those after."""
        dropped = functional.dropout(x_BTD, self.dropout if self.residual else 0.0, self.training)
        ahead_BTH, back_BTH = dropped.chunk(2, dim=-1)
        states_BTD = torch.cat([self.ahead(ahead_BTH)[0], reverse(self.back(reverse(back_BTH))[0])], dim=-1)
        return tap(self, "residual", x_BTD + states_BTD if self.residual else states_BTD)


class ElmoStack(TappedStack):
    """The layers of both directions, and their mix: γ Σ softmax(s)ⱼ hⱼ, where h₀ is the embedding, twice."""

    def __init__(self, model: settings.Elmo) -> None:
        super().__init__(ElmoLayer(model, residual=number > 0) for number in range(model.depth))
        self.mix = nn.Linear(model.depth + 1, 1)
        """Its weights are s; its bias is log γ."""

    def states(self, x: Tensor, layout: Layout) -> list[Tensor]:
        """`[..., D]` of each layer, the embedding first."""
        x_BTH, padded = unpacked(x, layout)
        states = [tap(self, "residual", torch.cat([x_BTH, x_BTH], dim=-1))]
        if padded.lengths_B is None:
            reverse: Callable[[Tensor], Tensor] = lambda x_BTD: x_BTD.flip(1)
        else:
            places_BT, lengths_B1 = padded.places(x.device), padded.lengths_B[:, None]
            order_BT1 = torch.where(places_BT < 0, 0, lengths_B1 - 1 - places_BT)[..., None]
            reverse = lambda x_BTD: x_BTD.gather(1, order_BT1.expand_as(x_BTD))
        for layer in self:
            states.append(layer(states[-1], reverse))
        return [repacked(each, layout) for each in states]

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        shares_L = self.mix.weight[0].softmax(0)
        mixed = sum(share * each for share, each in zip(shares_L, self.states(x, layout), strict=True))
        return tap(self, "out", mixed * self.mix.bias.exp())
