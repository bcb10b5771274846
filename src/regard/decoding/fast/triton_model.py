"""Decoding steps of plain encoder-decoders on a GPU, with Triton kernels between the matrix products.

The model's own forward takes about two hundred kernels for a step; this takes about eighty.

N: rows, D: width, V: vocabulary, T: positions.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.cache import Cache
from regard.blocks.experts import Experts
from regard.blocks.layers import Attention, FeedForward, Layer, Residual, RmsNorm
from regard.blocks.layout import Padded
from regard.blocks.positions import Position, Signals
from regard.blocks.settings import Attention as AttentionSettings
from regard.decoding.fast.triton_step import add_norm, attend_memory, attend_own, embed, inherit
from regard.decoding.model import Inputs, Model, State
from regard.models.families import EncoderDecoder, Output

HEADS = (16, 32, 64, 128, 256)
"""Head sizes of the kernels."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

AnyNorm: TypeAlias = nn.LayerNorm | RmsNorm


def serves(model: EncoderDecoder) -> bool:
    """Whether the kernels compute what this model does."""
    return (
        is_plain(model, model.target.tokens.weight)
        and type(model.decoder.position) is Position
        and len({layer.ffn_residual.place for layer in model.decoder}) == 1
    )


def is_plain(model: Model, weight: Tensor) -> bool:
    """Whether the kernels compute what a decoder's layers do; a feed-forward runs as it is."""
    attention = model.settings.attention
    assert isinstance(attention, AttentionSettings)
    return (
        weight.dtype in DTYPES
        and not torch.is_autocast_enabled(weight.device.type)
        and not any(model.decoder.windows)
        and attention.soft_cap is None
        and not attention.sinks
        and not any(layer.parallel for layer in model.decoder)
        and type(model.output) is Output
        and all(_is_plain(part) for layer in model.decoder for part in layer.children())
    )


def _is_plain(part: nn.Module) -> bool:
    if isinstance(part, Residual):
        plain = part.place in ("pre", "post") and part.after is None and part.scale is None
        return plain and isinstance(part.norm, AnyNorm)
    if not isinstance(part, Attention):
        return True
    linear = type(part) is Attention and all(type(each) is nn.Linear for each in (part.q, part.k, part.v))
    sizes = part.head_size in HEADS and part.value_size in HEADS
    return linear and sizes and part.joined is None and part.q_norm is None


class TritonState(State):
    """A `State` with Triton kernels. Its logits stay in place, in the model's dtype."""

    def __init__(self, model: Model, cache: Cache, raw: bool = True) -> None:
        assert isinstance(model, EncoderDecoder) and cache.fixed
        super().__init__(model, cache, raw=raw)
        self.network = model
        # For each batch again: weights change during training.
        self.joined = [joined_qkv(layer.attention) for layer in model.decoder]
        """Weight and bias of one product for q, k and v of self-attention, in each layer."""
        self.positions_TD: Tensor | None = None
        self.scores_NV = model.output.matrix.new_empty(0, model.output.matrix.shape[0])

    def read(self, inputs: Inputs, start: int | None) -> Tensor:
        tokens_BT, self.layout = inputs
        batch, weight, cache = self.layout.batch, self.network.target.tokens.weight, self.cache
        assert start is not None and cache.steps is not None
        memory_BSD = self.network.encode(tokens_BT, self.layout)
        self.memory_BSD = memory_BSD[..., :1]  # only its shape is used from now on
        for layer, cross in zip(self.network.decoder, cache.cross, strict=True):
            assert layer.cross is not None
            cross.get(functools.partial(layer.cross.keys_and_values, memory_BSD, Signals()))
        cache.plan(Padded(batch, 1))
        cache.commit()
        bound = cache.steps if cache.longest is None else min(cache.steps, cache.longest)
        positions = self.network.target.position.embed(Padded(1, bound), weight.device, weight.dtype)
        self.positions_TD = None if positions is None else positions[0].contiguous()
        # The start token has one row for each input. `commit` has marked its column as seen by all beams.
        start_B = torch.full((batch,), start, device=weight.device)
        seen_BC = torch.zeros(batch, cache.room, dtype=torch.bool, device=weight.device)
        return self._logits(self._through_layers(start_B, seen_BC, torch.zeros_like(cache.blocks_1)))

    def step(self, tokens_N: Tensor) -> Tensor:
        """Appends a token to each row; returns the logits `[N, V]`, which the next step overwrites."""
        if len(self.scores_NV) != len(tokens_N):
            self.scores_NV = self.scores_NV.new_empty(len(tokens_N), self.scores_NV.shape[1])
        self._write_scores(self._through_layers(tokens_N, self.cache.seen_NC, self.cache.blocks_1))
        self.cache.time += 1
        self.cache.blocks_1 += 1
        return self.scores_NV

    def _through_layers(self, tokens_N: Tensor, seen_NC: Tensor, blocks_1: Tensor) -> Tensor:
        """`[N, D]`. x is the residual stream, y the input of the next sublayer."""
        model, layers = self.network, list(self.network.decoder)
        target, final = model.target, model.decoder.norm
        post = layers[0].ffn_residual.place == "post"
        # The start token is at position 0 and in the first block, so blocks count positions.
        x_ND = embed(tokens_N, target.tokens.weight, target.scale, self.positions_TD, blocks_1)
        x_ND = x_ND if target.norm is None else target.norm(x_ND)
        norms = [norm for layer in layers for norm in _norms(layer)]
        y_ND = x_ND if post else add_norm(x_ND, None, norms[0])[1]
        # A norm before a sublayer is computed with the sum at the end of the previous one.
        assert final is None or isinstance(final, AnyNorm)
        following: list[AnyNorm | None] = [*norms] if post else [*norms[1:], final]
        for number, norm in enumerate(following):
            added_ND = self._sublayer(number, y_ND, seen_NC, blocks_1)
            if norm is None:
                return x_ND + added_ND
            x_ND, y_ND = add_norm(x_ND, added_ND, norm)
            x_ND = y_ND if post else x_ND
        return add_norm(y_ND, None, final)[1] if post and final is not None else y_ND

    def _sublayer(self, number: int, y_ND: Tensor, seen_NC: Tensor, blocks_1: Tensor) -> Tensor:
        """The output of one sublayer, counted through all layers."""
        i, which = divmod(number, 3)
        layer, cache = self.network.decoder[i], self.cache
        if which == 2:
            return _feed_forward(layer.ffn, y_ND)
        attention = layer.attention if which == 0 else layer.cross
        assert attention is not None
        if which == 0:
            cells = (cache.layers[i].k_BCGE, cache.layers[i].v_BCGV)
            mixed_NX = attend_own(attention, functional.linear(y_ND, *self.joined[i]), cells, seen_NC, blocks_1)
        else:
            memory, lengths_B = cache.cross[i].stored, self.layout.lengths_B
            assert memory is not None and lengths_B is not None
            mixed_NX = attend_memory(attention, attention.q(y_ND), memory, lengths_B)
        out_ND: Tensor = attention.out(mixed_NX)
        return out_ND

    def _write_scores(self, y_ND: Tensor) -> None:
        output = self.network.output
        y_ND = y_ND if output.scale is None else y_ND * output.scale
        if output.bias is None:
            torch.mm(y_ND, output.matrix.T, out=self.scores_NV)
        else:
            torch.addmm(output.bias, y_ND, output.matrix.T, out=self.scores_NV)

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        if inputs_B is None and self.cache.rows * self.cache.inputs == len(rows_N):
            inherit(self.cache.seen_NC, rows_N, self.cache.inputs)
        else:
            super().select(rows_N, inputs_B)


def _norms(layer: Layer) -> list[AnyNorm]:
    residuals = (layer.attention_residual, layer.cross_residual, layer.ffn_residual)
    return [each.norm for each in residuals if each is not None and isinstance(each.norm, AnyNorm)]


def joined_qkv(attention: Attention) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one product for q, k and v."""
    three = (attention.q, attention.k, attention.v)
    biases: list[Tensor | None] = [each.bias for each in three]
    given = [bias for bias in biases if bias is not None]
    return torch.cat([each.weight for each in three]), torch.cat(given) if given else None


def _feed_forward(ffn: FeedForward | Experts, y_ND: Tensor) -> Tensor:
    """The feed-forward; with ReLU, the product and the activation are one kernel."""
    out_ND: Tensor
    relu = ffn.gate is None and ffn.activation is functional.relu
    if isinstance(ffn, Experts) or not relu or type(ffn.up) is not nn.Linear or ffn.up.bias is None:
        out_ND = ffn(y_ND)
    else:
        out_ND = ffn.down(torch._addmm_activation(ffn.up.bias, y_ND, ffn.up.weight.T))
    return out_ND
