"""Translation on a CPU: the rows of an input share what they have in common.

Written tokens are columns of their input: a row of the beam sees those that it descends from. So when rows change
places, a mask does, and no key or value is moved; and since the rows of a beam soon have the same beginning, most
columns are kept once for all of them. Columns that no row sees any more are dropped from time to time.

B: inputs, K: rows of each, N = B × K, C: columns of each, S: source tokens, D: width, H and G: heads of queries and of
keys, E: size of a head, V: of its values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.attention import Attention
from regard.blocks.layout import Padded
from regard.blocks.positions.position import Position, Signals
from regard.blocks.stack import Layer
from regard.models.encoder_decoder import EncoderDecoder

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
        self.memory = [cross.keys_and_values(memory_BSD, NO_SIGNALS) for cross in crosses]
        """Keys `[B, S, G, E]` and values `[B, S, G, V]` of each layer."""
        self.cells: list[tuple[Tensor, Tensor]] = []
        """Keys `[B, C, G, E]` and values `[B, C, G, V]` of each layer, with room for columns to come."""
        self.seen_NC = torch.zeros(self.inputs, 0, dtype=torch.bool)
        self.attended_NS: Tensor | None = None

    def step(self, tokens_N: Tensor) -> Tensor:
        """`[N, V]`: scores of what follows when each row is continued with its token."""
        rows = len(tokens_N) // self.inputs
        if self.seen_NC.shape[1] + rows > self.room:
            self._forget(rows)
        self.seen_NC = torch.cat([self.seen_NC, torch.eye(rows, dtype=torch.bool).repeat(self.inputs, 1)], dim=1)
        x_ND = self.model.target(tokens_N[:, None], Padded(len(tokens_N), 1, start=self.time))[:, 0]
        hidden_BKC = _hidden(self.seen_NC.view(self.inputs, rows, -1), x_ND.dtype)
        for i, layer in enumerate(self.model.decoder):
            x_ND = self._layer(layer, x_ND, i, hidden_BKC)
        norm = self.model.decoder.norm
        self.time += 1
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
        end = hidden_BKC.shape[-1]
        keys, values = (each[:, :end] for each in self.cells[i])
        keys[:, end - shape[1] :] = k
        values[:, end - shape[1] :] = v
        return self._mixed(attention, q, keys, values, hidden_BKC)

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
        mask = None if hidden is None else hidden[:, None]
        q, k, v = (each.transpose(1, 2) for each in (q_BKHE, k, v))
        grouped = attention.heads != attention.kv_heads
        mixed_BHKV = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=attention.scale, enable_gqa=grouped
        )
        out_ND: Tensor = attention.out(mixed_BHKV.transpose(1, 2).flatten(2).flatten(0, 1))
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
        self.memory = [(k.index_select(0, inputs_B), v.index_select(0, inputs_B)) for k, v in self.memory]
        self.cells = [(k.index_select(0, inputs_B), v.index_select(0, inputs_B)) for k, v in self.cells]

    def attended(self) -> Tensor | None:
        """`[N, S]`: where the last step looked in the source, as the mean of the last layer's heads."""
        return self.attended_NS

    def fixed(self) -> None:
        """Columns come and go."""

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


def _hidden(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where a key is seen, −∞ elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


def _kept(cells_BCGE: Tensor, order_BC: Tensor, room: int) -> Tensor:
    """The chosen columns of each input, in memory with room for so many."""
    batch, columns, *shape = cells_BCGE.shape
    kept = cells_BCGE.new_empty(batch, room, *shape)
    index_BC = order_BC + columns * torch.arange(batch)[:, None]
    kept[:, : order_BC.shape[1]] = cells_BCGE.flatten(0, 1)[index_BC]
    return kept


def _mean_weights(q_BKHE: Tensor, k_BSGE: Tensor, hidden_B1S: Tensor | None, scale: float) -> Tensor:
    """`[N, S]`: the weights of attention, as a mean of its heads."""
    k_BSHE = k_BSGE.repeat_interleave(q_BKHE.shape[2] // k_BSGE.shape[2], dim=2)
    scores_BHKS = torch.einsum("bkhe,bshe->bhks", q_BKHE, k_BSHE) * scale
    if hidden_B1S is not None:
        scores_BHKS = scores_BHKS + hidden_B1S[:, None]
    return scores_BHKS.softmax(-1).mean(1).flatten(0, 1)
