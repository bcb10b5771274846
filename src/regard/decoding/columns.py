"""Translation: the rows of an input share what they have in common.

Written tokens are columns of their input: a row of the beam sees those that it descends from. So when rows change
places, a mask does, and no key or value is moved; and since the rows of a beam soon have the same beginning, most
columns are kept once for all of them. On a CPU, columns that no row sees any more are dropped from time to time; on a
GPU every step has columns of its own, in memory that stays in its place, so that a step can be recorded.

B: inputs, K: rows of each, N = B × K, C: columns of each, S: source tokens, D: width, H and G: heads of queries and of
keys, E: size of a head, V: of its values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.attention import Attention
from regard.blocks.layers import Layer
from regard.blocks.layout import Padded
from regard.blocks.positions import Position, Signals
from regard.models.families import EncoderDecoder


class Fixed(NamedTuple):
    """What stays in its place while a model writes."""

    model: nn.Module
    tensors: list[Tensor]
    """All that steps read and write."""


FORGET_EVERY = 8
"""Steps of a beam search after which columns that no row sees are dropped."""

LEAST_ROOM = 32
"""Columns at least for which room is made at a time."""

NO_SIGNALS = Signals()


def shares(model: EncoderDecoder) -> bool:
    """Whether a model's attention is plain enough to be worked out here; `Attention` itself knows the rest."""
    attention = model.settings.attention
    usual = all(type(part) is Attention for layer in model.decoder for part in (layer.attention, layer.cross))
    return (
        usual and attention.window is None and attention.soft_cap is None and type(model.decoder.position) is Position
    )


class SharedState:
    """A `State` of an encoder-decoder whose rows share columns."""

    def __init__(self, model: EncoderDecoder, memory_BSD: Tensor, layout: Padded, look: bool = False) -> None:
        self.model, self.look = model, look
        self.inputs, self.time, self.room = layout.batch, 0, 0
        real_BS = layout.real(memory_BSD.device)
        self.absent_BS = None if real_BS is None else _hidden(real_BS, memory_BSD.dtype)
        crosses = [layer.cross for layer in model.decoder if layer.cross is not None]
        pairs = (cross.keys_and_values(memory_BSD, NO_SIGNALS) for cross in crosses)
        self.memory = [(_by_heads(k), _by_heads(v)) for k, v in pairs]
        """Keys `[B, S, G, E]` and values `[B, S, G, V]` of each layer."""
        self.cells: list[tuple[Tensor, Tensor]] = []
        """Keys `[B, C, G, E]` and values `[B, C, G, V]` of each layer, with room for columns to come."""
        self.seen_NC = torch.zeros(self.inputs, 0, dtype=torch.bool, device=memory_BSD.device)
        self.attended_NS: Tensor | None = None

    def step(self, tokens_N: Tensor) -> Tensor:
        """`[N, V]`: scores of what follows when each row is continued with its token."""
        rows = len(tokens_N) // self.inputs
        if self.seen_NC.shape[1] + rows > self.room:
            self._forget(rows)
        self.seen_NC = torch.cat([self.seen_NC, torch.eye(rows, dtype=torch.bool).repeat(self.inputs, 1)], dim=1)
        scores_NV = self._scores(tokens_N, Padded(len(tokens_N), 1, start=self.time))
        self.time += 1
        return scores_NV

    def _scores(self, tokens_N: Tensor, layout: Padded) -> Tensor:
        """Through all layers, with the columns that `seen_NC` names."""
        x_ND = self.model.target(tokens_N[:, None], layout)[:, 0]
        hidden_BKC = _hidden(self.seen_NC.view(self.inputs, len(tokens_N) // self.inputs, -1), x_ND.dtype)
        for i, layer in enumerate(self.model.decoder):
            x_ND = self._layer(layer, x_ND, i, hidden_BKC)
        norm = self.model.decoder.norm
        scores_NV: Tensor = self.model.output(x_ND if norm is None else norm(x_ND))
        return scores_NV.to(torch.promote_types(scores_NV.dtype, torch.float32))

    def _layer(self, layer: Layer, x_ND: Tensor, i: int, hidden_BKC: Tensor) -> Tensor:
        cross, cross_residual = layer.cross, layer.cross_residual
        assert cross is not None and cross_residual is not None  # as in every encoder-decoder
        x_ND = layer.attention_residual(x_ND, lambda y_ND: self._own(layer.attention, y_ND, i, hidden_BKC))
        x_ND = cross_residual(x_ND, lambda y_ND: self._source(cross, y_ND, i))
        out_ND: Tensor = layer.ffn_residual(x_ND, layer.ffn)
        return out_ND

    def _own(self, attention: Attention, x_ND: Tensor, i: int, hidden_BKC: Tensor) -> Tensor:
        """Self-attention: new columns are stored, and each row attends to those that it sees."""
        shape = (self.inputs, len(x_ND) // self.inputs)
        q, k, v = (each.view(*shape, *each.shape[1:]) for each in attention.queries_keys_values(x_ND, NO_SIGNALS))
        keys, values = self._stored(i, k, v)
        return self._mixed(attention, q, keys, values, hidden_BKC)

    def _stored(self, i: int, k_BKGE: Tensor, v_BKGV: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of all columns of a layer, with the new ones at their end."""
        end, rows = self.seen_NC.shape[1], k_BKGE.shape[1]
        keys, values = (each[:, :end] for each in self.cells[i])
        keys[:, end - rows :] = k_BKGE
        values[:, end - rows :] = v_BKGV
        return keys, values

    def _source(self, cross: Attention, x_ND: Tensor, i: int) -> Tensor:
        """Cross-attention: the rows of an input are several queries to one memory."""
        shape = (self.inputs, len(x_ND) // self.inputs)
        q_NHE = cross.queries(x_ND, NO_SIGNALS)
        q_BKHE = q_NHE.view(*shape, *q_NHE.shape[1:])
        keys, values = self.memory[i]
        absent_B1S = None if self.absent_BS is None else self.absent_BS[:, None]
        if self.look and i == len(self.memory) - 1:
            self.attended_NS = _mean_weights(q_BKHE, keys, absent_B1S, cross.scale)
        return self._mixed(cross, q_BKHE, keys, values, absent_B1S)

    @staticmethod
    def _mixed(attention: Attention, q_BKHE: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        mixed = _products if q_BKHE.device.type == "cpu" else _kernel
        mixed_BKHV = mixed(q_BKHE, k, v, hidden, attention.scale)
        out_ND: Tensor = attention.out(mixed_BKHV.flatten(2).flatten(0, 1))
        return out_ND

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        """Row n goes on from row `rows_N[n]`; where inputs are finished and go, `inputs_B` are those that stay."""
        self.seen_NC = self.seen_NC.index_select(0, rows_N)
        if self.attended_NS is not None:
            self.attended_NS = self.attended_NS.index_select(0, rows_N)
        if inputs_B is None:
            return
        self.inputs = len(inputs_B)
        self.absent_BS = None if self.absent_BS is None else self.absent_BS.index_select(0, inputs_B)
        self.memory = [(_chosen(k, inputs_B), _chosen(v, inputs_B)) for k, v in self.memory]
        self.cells = [(_chosen(k, inputs_B), _chosen(v, inputs_B)) for k, v in self.cells]

    def attended(self) -> Tensor | None:
        """`[N, S]`: where the last step looked in the source, as the mean of the last layer's heads."""
        return self.attended_NS

    def fixed(self) -> Fixed | None:
        """Columns come and go."""
        return None

    def _forget(self, rows: int) -> None:
        """Keeps the columns that some row sees, at the beginning of new memory with room for those to come."""
        columns = self.seen_NC.shape[1]
        seen_BKC = self.seen_NC.view(self.inputs, len(self.seen_NC) // self.inputs, columns)
        needed_BC = seen_BKC.any(1)
        width = int(needed_BC.sum(1).max()) if columns else 0
        # The needed ones first and in their order; inputs that need fewer keep some that no row sees.
        order_BC = needed_BC.int().argsort(dim=1, descending=True, stable=True)[:, :width]
        self.seen_NC = seen_BKC.gather(2, order_BC[:, None].expand(-1, seen_BKC.shape[1], -1)).flatten(0, 1)
        self.room = width + max(FORGET_EVERY * rows, LEAST_ROOM)
        old = self.cells or [(k[:, :0], v[:, :0]) for k, v in self.memory]
        self.cells = [(_kept(k, order_BC, self.room), _kept(v, order_BC, self.room)) for k, v in old]


class FixedState(SharedState):
    """The same in memory that stays in its place: a step takes as many columns as there are rows, the next ones."""

    def __init__(self, model: EncoderDecoder, memory_BSD: Tensor, layout: Padded, steps: int, bound: int) -> None:
        """For so many steps, of which none has a place beyond the bound."""
        super().__init__(model, memory_BSD, layout)
        self.steps, self.bound, self.rows = steps, bound, 0
        self.time_1 = torch.zeros(1, dtype=torch.long, device=memory_BSD.device)
        """How many steps were taken, where the device can see it."""

    def step(self, tokens_N: Tensor) -> Tensor:
        rows = len(tokens_N) // self.inputs
        if rows != self.rows:
            self._widen(rows)
        self.seen_NC.scatter_(1, self._own_columns().repeat(self.inputs)[:, None], True)
        layout = Padded(len(tokens_N), 1, places_BT=self.time_1.expand(len(tokens_N), 1), bound=self.bound)
        scores_NV = self._scores(tokens_N, layout)
        self.time_1 += 1
        return scores_NV

    def _own_columns(self) -> Tensor:
        """`[K]`: those that the rows of an input take in this step."""
        return self.time_1 * self.rows + torch.arange(self.rows, device=self.time_1.device)

    def _stored(self, i: int, k_BKGE: Tensor, v_BKGV: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.cells[i]
        index_K = self._own_columns()
        keys.index_copy_(1, index_K, k_BKGE)
        values.index_copy_(1, index_K, v_BKGV)
        return keys, values

    def _widen(self, rows: int) -> None:
        """Makes room for so many rows of each input; of what there is, each step's only column stays its first."""
        assert self.rows <= 1, "a beam is widened once"
        columns, like = self.steps * rows, self.seen_NC
        seen_NC = like.new_zeros(self.inputs * rows, columns)
        cells = [tuple(each.new_zeros(self.inputs, columns, *each.shape[2:]) for each in pair) for pair in self.memory]
        if self.rows:
            seen_NC[:, ::rows] = like
            for new, old in zip(cells, self.cells, strict=True):
                for wide, narrow in zip(new, old, strict=True):
                    wide[:, ::rows] = narrow
        self.rows, self.seen_NC, self.cells = rows, seen_NC, [(k, v) for k, v in cells]

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        """Row n goes on from row `rows_N[n]`; where inputs are finished and go, `inputs_B` are those that stay."""
        if inputs_B is None and len(rows_N) == len(self.seen_NC):
            self.seen_NC.copy_(self.seen_NC.index_select(0, rows_N))
        else:
            super().select(rows_N, inputs_B)

    def fixed(self) -> Fixed:
        tensors = [self.seen_NC, self.time_1, *(each for pair in (*self.cells, *self.memory) for each in pair)]
        return Fixed(self.model, tensors if self.absent_BS is None else [*tensors, self.absent_BS])


def _hidden(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where a key is seen, −∞ elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


# ------------------------------------------------------------------------------------------------------------ attention


def _kernel(q_BKHE: Tensor, k_BCGE: Tensor, v_BCGV: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q_BKHE, k_BCGE, v_BCGV))
    mask = None if hidden is None else hidden[:, None]
    grouped = q.shape[1] != k.shape[1]
    mixed_BHKV = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return mixed_BHKV.transpose(1, 2)


def _products(q_BKHE: Tensor, k_BCGE: Tensor, v_BCGV: Tensor, hidden: Tensor | None, scale: float) -> Tensor:
    """The same by products of all heads at once: with so few queries, a CPU's kernel takes three times as long."""
    batch, rows, heads, _ = q_BKHE.shape
    groups, columns, size = k_BCGE.shape[2], k_BCGE.shape[1], v_BCGV.shape[3]
    # The heads that share keys are so many more queries to them.
    queries = heads // groups * rows
    q, k, v = (each.transpose(1, 2).reshape(batch * groups, -1, each.shape[3]) for each in (q_BKHE, k_BCGE, v_BCGV))
    scores = torch.bmm(q.mul(scale), k.transpose(1, 2)).view(batch, heads, rows, columns)
    if hidden is not None:
        scores += hidden[:, None]
    weights = scores.softmax(-1).view(batch * groups, queries, columns)
    return torch.bmm(weights, v).view(batch, heads, rows, size).transpose(1, 2)


# --------------------------------------------------------------------------------------------------------------- memory


def _by_heads(cells_BCGE: Tensor) -> Tensor:
    """The same, on a CPU with the columns of a head side by side in memory, as products want them."""
    return cells_BCGE.transpose(1, 2).contiguous().transpose(1, 2) if cells_BCGE.device.type == "cpu" else cells_BCGE


def _chosen(cells_BCGE: Tensor, inputs_B: Tensor) -> Tensor:
    """Some inputs, laid out as they were."""
    if cells_BCGE.is_contiguous():
        return cells_BCGE.index_select(0, inputs_B)
    return cells_BCGE.transpose(1, 2).index_select(0, inputs_B).transpose(1, 2)


def _kept(cells_BCGE: Tensor, order_BC: Tensor, room: int) -> Tensor:
    """The chosen columns of each input, in memory with room for so many, laid out by heads."""
    batch, columns, groups, size = cells_BCGE.shape
    kept = cells_BCGE.new_empty(batch, groups, room, size)
    first_BG = columns * torch.arange(batch * groups).view(batch, groups)
    index_BGC = first_BG[..., None] + order_BC[:, None]
    kept[:, :, : order_BC.shape[1]] = cells_BCGE.transpose(1, 2).flatten(0, 2)[index_BGC]
    return kept.transpose(1, 2)


def _mean_weights(q_BKHE: Tensor, k_BSGE: Tensor, hidden_B1S: Tensor | None, scale: float) -> Tensor:
    """`[N, S]`: the weights of attention, as a mean of its heads."""
    k_BSHE = k_BSGE.repeat_interleave(q_BKHE.shape[2] // k_BSGE.shape[2], dim=2)
    scores_BHKS = torch.einsum("bkhe,bshe->bhks", q_BKHE, k_BSHE) * scale
    if hidden_B1S is not None:
        scores_BHKS = scores_BHKS + hidden_B1S[:, None]
    return scores_BHKS.softmax(-1).mean(1).flatten(0, 1)
