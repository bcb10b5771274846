"""A decoding step of plain decoders (GPT-2, LLaMA) with Triton kernels, for rows of different lengths.

For one row, each linear layer is one kernel together with the norm before it and the activation or the sum after it:
five kernels a layer. For more rows, cuBLAS computes the products. Import this module only where it runs: not every
machine has Triton.

S: rows, C: columns of the cache, D: width, H and G: heads of queries and of keys, E: size of a head, V: of its values.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.cache import SelfCache, SlotCache
from regard.blocks.layers import ACTIVATIONS, Attention, FeedForward, Layer
from regard.blocks.layout import Padded
from regard.blocks.positions import Position, RotaryPosition, Rotation
from regard.blocks.settings import DynamicScaling
from regard.blocks.visibility import Visibility
from regard.decoding.fast.triton_model import AnyNorm, is_plain, joined_qkv
from regard.decoding.fast.triton_step import add_norm, embed
from regard.models.families import Decoder

INPUTS, CELLS, PROGRAMS = 1024, 8192, 128
"""Of a linear layer: inputs and weights that a program reads at a time, and the fewest programs."""
COLUMNS = 8192
"""Columns that a program of attention reads at a time, times the size of a value."""

_KINDS = {name: number for number, name in enumerate(("", *ACTIVATIONS))}
_RELU, _GELU, _TANH, _SILU, _SQUARE, _QUICK = (tl.constexpr(_KINDS[name]) for name in ACTIVATIONS)


@triton.jit
def _activated(x, KIND: tl.constexpr):
    if KIND == _RELU:
        x = tl.maximum(x, 0.0)
    elif KIND == _GELU:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == _TANH:
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == _SILU:
        x = x * tl.sigmoid(x)
    elif KIND == _SQUARE:
        x = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif KIND == _QUICK:
        x = x * tl.sigmoid(1.702 * x)
    return x


@triton.jit
def _linear(
    x,
    weight,
    bias,
    norm,
    norm_bias,
    other,
    out,
    width,
    outputs,
    eps,
    offset,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    NORMED: tl.constexpr,
    CENTRED: tl.constexpr,
    NORM_BIAS: tl.constexpr,
    BIASED: tl.constexpr,
    KIND: tl.constexpr,
    ADDS: tl.constexpr,
    TIMES: tl.constexpr,
):
    """Some outputs for one row; sums are in float32."""
    o, lane = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS)
    inside, cell = o < outputs, o.to(tl.int64)[None, :] * width
    sums, squares = tl.zeros([INPUTS], tl.float32), tl.zeros([INPUTS], tl.float32)
    if NORMED:
        for start in range(0, width, INPUTS):
            y = tl.load(x + start + lane, mask=start + lane < width, other=0.0).to(tl.float32)
            squares += y * y
            if CENTRED:
                sums += y
    mean = tl.sum(sums, axis=0) / width
    factor = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / width - mean * mean + eps)
    total = tl.zeros([INPUTS, OUTPUTS], tl.float32)
    for start in range(0, width, INPUTS):
        d = start + lane
        some = d < width
        w = tl.load(weight + cell + d[:, None], mask=inside[None, :] & some[:, None], other=0.0)
        y = tl.load(x + d, mask=some, other=0.0).to(tl.float32)
        if NORMED:
            y = (y - mean) * factor * (tl.load(norm + d, mask=some, other=0.0).to(tl.float32) + offset)
            if NORM_BIAS:
                y += tl.load(norm_bias + d, mask=some, other=0.0).to(tl.float32)
        total += w.to(tl.float32) * y[:, None]
    found = tl.sum(total, axis=0)
    if BIASED:
        found += tl.load(bias + o, mask=inside, other=0.0).to(tl.float32)
    found = _activated(found, KIND)
    if ADDS:
        found += tl.load(other + o, mask=inside, other=0.0).to(tl.float32)
    if TIMES:
        found *= tl.load(other + o, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + o, found.to(out.dtype.element_ty), mask=inside)


def fused_linear(
    x_1D: Tensor,
    layer: tuple[Tensor, Tensor | None],
    norm: nn.Module | None = None,
    kind: str = "",
    added_1O: Tensor | None = None,
    times_1O: Tensor | None = None,
) -> Tensor:
    """`[1, O]`: activation(norm(x) W + b) of one row, plus or times another tensor."""
    assert norm is None or isinstance(norm, AnyNorm)
    (weight_OD, bias_O), width = layer, x_1D.shape[1]
    count, inputs = len(weight_OD), min(triton.next_power_of_2(width), INPUTS)
    out_1O, outputs = x_1D.new_empty(1, count), CELLS // inputs
    norm_bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    while outputs > 4 and outputs * PROGRAMS > count:
        outputs //= 2
    given = (bias_O, norm and norm.weight, norm_bias, times_1O if added_1O is None else added_1O)
    _linear[(triton.cdiv(count, outputs),)](
        *(x_1D, weight_OD, *(x_1D if each is None else each for each in given), out_1O),
        *(width, count, norm.eps if norm else 1.0, float(getattr(norm, "unit_offset", False))),
        OUTPUTS=outputs,
        INPUTS=inputs,
        NORMED=norm is not None,
        CENTRED=isinstance(norm, nn.LayerNorm),
        NORM_BIAS=norm_bias is not None,
        BIASED=bias_O is not None,
        KIND=_KINDS[kind],
        ADDS=added_1O is not None,
        TIMES=times_1O is not None,
        num_warps=4,
        num_stages=4,
    )
    return out_1O


@triton.jit
def _turned(new, cell, e, place, cosines, sines, PAIRS: tl.constexpr, HALVES: tl.constexpr):
    """The vector at `cell`, rotated by its position."""
    x = tl.load(new + cell + e)
    if PAIRS > 0:
        if HALVES:
            pair, first = e % PAIRS, e < PAIRS
            other = tl.where(first, e + PAIRS, e - PAIRS)
        else:
            pair, first = e // 2, e % 2 == 0
            other = tl.where(first, e + 1, e - 1)
        turns = e < 2 * PAIRS
        other = tl.where(turns, other, e)
        pair = tl.where(turns, pair, 0)
        y = tl.load(new + cell + other).to(tl.float32)
        cos, sin = tl.load(cosines + place * PAIRS + pair), tl.load(sines + place * PAIRS + pair)
        z = x.to(tl.float32) * cos + tl.where(first, -y, y) * sin
        x = tl.where(turns, z, x.to(tl.float32)).to(new.dtype.element_ty)
    return x


@triton.jit
def _attend(
    new,  # [S, (H + G) × E + G × V]: queries, keys, values
    keys,  # [S, C, G, E]
    values,  # [S, C, G, V]
    places,  # [S]
    cosines,  # [C, PAIRS]
    sines,
    out,  # [S, H, V]
    columns,
    scale,
    H: tl.constexpr,
    G: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
    PAIRS: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one row attends to the columns before its own, and to itself."""
    s, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    g = h // (H // G)
    e, v = tl.arange(0, E), tl.arange(0, V)
    place = tl.load(places + s)
    start_s = s * ((H + G) * E + G * V)
    q = _turned(new, start_s + h * E, e, place, cosines, sines, PAIRS, HALVES).to(tl.float32)
    own_key = _turned(new, start_s + (H + g) * E, e, place, cosines, sines, PAIRS, HALVES)
    own_value = tl.load(new + start_s + (H + G) * E + g * V + v)
    own = (s * columns + place) * G + g
    if h % (H // G) == 0:
        tl.store(keys + own * E + e, own_key)
        tl.store(values + own * V + v, own_value)
    q = q * scale
    own_score = tl.sum(q * own_key.to(tl.float32), axis=0)
    # Each lane has sums of its own, which are put together at the end.
    highest = tl.zeros([BLOCK], tl.float32) + own_score
    total = tl.zeros([BLOCK], tl.float32)
    mixed = tl.zeros([BLOCK, V], tl.float32)
    for start in range(0, place, BLOCK):
        c = start + tl.arange(0, BLOCK)
        inside = c < place
        cell = (s * columns + c) * G + g
        k = tl.load(keys + cell[:, None] * E + e[None, :], mask=inside[:, None], other=0.0)
        x = tl.load(values + cell[:, None] * V + v[None, :], mask=inside[:, None], other=0.0)
        scores = tl.where(inside, tl.sum(k.to(tl.float32) * q[None, :], axis=1), float("-inf"))
        top = tl.maximum(highest, scores)
        weights, shrink = tl.exp(scores - top), tl.exp(highest - top)
        total = total * shrink + weights
        mixed = mixed * shrink[:, None] + weights[:, None] * x.to(tl.float32)
        highest = top
    top = tl.max(highest, axis=0)
    shrink, own_weight = tl.exp(highest - top), tl.exp(own_score - top)
    result = tl.sum(mixed * shrink[:, None], axis=0) + own_weight * own_value.to(tl.float32)
    result = result / (tl.sum(total * shrink, axis=0) + own_weight)
    tl.store(out + (s * H + h) * V + v, result.to(out.dtype.element_ty))


def attend_slots(
    attention: Attention, new_SX: Tensor, layer: SelfCache, places_S: Tensor, rotation: Rotation | None
) -> Tensor:
    """`[S, H × V]`: attention of one new token in every row, whose key and value are stored."""
    out_SX = new_SX.new_empty(len(new_SX), attention.heads * attention.value_size)
    tables = (new_SX, new_SX) if rotation is None else (rotation.cos, rotation.sin)
    # Few programs get more threads.
    warps = 8 if len(new_SX) * attention.heads < 2 * PROGRAMS else 4
    _attend[(len(new_SX), attention.heads)](
        *(new_SX, layer.k_BCGE, layer.v_BCGV, places_S, *tables, out_SX, layer.k_BCGE.shape[1], attention.scale),
        H=attention.heads,
        G=attention.kv_heads,
        E=attention.head_size,
        V=attention.value_size,
        PAIRS=0 if rotation is None else rotation.cos.shape[-1],
        HALVES=rotation is not None and rotation.order == "halves",
        BLOCK=max(COLUMNS // attention.value_size, 16) * warps // 4,
        num_warps=warps,
        num_stages=2,
    )
    return out_SX


def reads(model: Decoder) -> bool:
    """Whether the kernels compute what this model does."""
    embedding, output, position = model.embedding, model.output, model.decoder.position
    rotary = isinstance(position, RotaryPosition) and not isinstance(position.position.scaling, DynamicScaling)
    return (
        is_plain(model, embedding.tokens.weight)
        and (rotary or type(position) is Position)
        and all(each is None for each in (embedding.project, embedding.segments, output.scale, output.cap))
        and isinstance(model.decoder.norm, AnyNorm)
        and all(layer.ffn_residual.place == "pre" and _is_dense(layer) for layer in model.decoder)
    )


def _pair(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    assert isinstance(linear, nn.Linear)
    return linear.weight, linear.bias


def _is_dense(layer: Layer) -> bool:
    return type(layer.ffn) is FeedForward and {type(each) for each in (layer.attention.out, *layer.ffn.children())} == {
        nn.Linear
    }


class DecoderStep:
    """The step of a decoder with a `SlotCache`."""

    def __init__(self, model: Decoder, cache: SlotCache) -> None:
        self.cache = cache
        self.joined = [joined_qkv(layer.attention) for layer in model.decoder]
        """Weight and bias of one product for q, k and v, in each layer."""
        places = Padded(1, cache.columns)
        weight = model.embedding.tokens.weight
        positions = model.embedding.position.embed(places, weight.device, weight.dtype)
        self.positions_CD = None if positions is None else positions[0].contiguous()
        signals = model.decoder.position.signals(Visibility(places, places, causal=True), weight.device, torch.float32)
        turn = signals.rotation
        self.rotation = turn and turn._replace(cos=turn.cos.flatten(0, -2), sin=turn.sin.flatten(0, -2))
        names = {id(function): name for name, function in ACTIVATIONS.items()}
        self.kinds = [names[id(layer.ffn.activation)] for layer in model.decoder]

    def refresh(self, model: Decoder) -> None:
        """Copies the weights again, which training changes in place."""
        new = DecoderStep(model, self.cache)
        mine, its = ((*each.joined, (each.positions_CD,)) for each in (self, new))
        for old, value in zip(chain(*mine), chain(*its), strict=True):
            if old is not None and value is not None:
                old.copy_(value)

    def scores(self, model: Decoder, token_S: Tensor) -> Tensor:
        """`[S, V]`: the logits after reading a token in every row."""
        embedding, places_S = model.embedding, self.cache.place_B1[:, 0]
        x_SD = embed(token_S, embedding.tokens.weight, embedding.scale, self.positions_CD, places_S)
        x_SD = x_SD if embedding.norm is None else embedding.norm(x_SD)
        return (self._one if len(token_S) == 1 else self._many)(model, x_SD, places_S)

    def _one(self, model: Decoder, x_1D: Tensor, places_1: Tensor) -> Tensor:
        for layer, own, qkv, kind in zip(model.decoder, self.cache.layers, self.joined, self.kinds, strict=True):
            ffn, norm = layer.ffn, layer.ffn_residual.norm
            assert isinstance(ffn, FeedForward)
            new_1X = fused_linear(x_1D, qkv, layer.attention_residual.norm)
            mixed_1X = attend_slots(layer.attention, new_1X, own, places_1, self.rotation)
            x_1D = fused_linear(mixed_1X, _pair(layer.attention.out), added_1O=x_1D)
            hidden_1H = fused_linear(x_1D, _pair(ffn.up if ffn.gate is None else ffn.gate), norm, kind)
            if ffn.gate is not None:
                hidden_1H = fused_linear(x_1D, _pair(ffn.up), norm, times_1O=hidden_1H)
            x_1D = fused_linear(hidden_1H, _pair(ffn.down), added_1O=x_1D)
        return fused_linear(x_1D, (model.output.matrix, model.output.bias), model.decoder.norm)

    def _many(self, model: Decoder, x_SD: Tensor, places_S: Tensor) -> Tensor:
        added_SD: Tensor | None = None
        for layer, own, qkv, kind in zip(model.decoder, self.cache.layers, self.joined, self.kinds, strict=True):
            ffn, norms = layer.ffn, (layer.attention_residual.norm, layer.ffn_residual.norm)
            assert isinstance(ffn, FeedForward) and isinstance(norms[0], AnyNorm) and isinstance(norms[1], AnyNorm)
            x_SD, y_SD = add_norm(x_SD, added_SD, norms[0])
            mixed_SX = attend_slots(layer.attention, functional.linear(y_SD, *qkv), own, places_S, self.rotation)
            x_SD, y_SD = add_norm(x_SD, layer.attention.out(mixed_SX), norms[1])
            up = ffn.up
            # The fused GELU is the approximation by tanh on a GPU only.
            if kind == "gelu-tanh" and y_SD.is_cuda and ffn.gate is None and up.bias is not None:
                hidden_SH = torch._addmm_activation(up.bias, y_SD, up.weight.T, use_gelu=True)
                added_SD = ffn.down(hidden_SH)
            else:
                added_SD = ffn(y_SD)
        final = model.decoder.norm
        assert isinstance(final, AnyNorm)
        y_SD = add_norm(x_SD, added_SD, final)[1]
        return functional.linear(y_SD, model.output.matrix, model.output.bias)
