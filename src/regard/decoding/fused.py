"""Steps of translation on a GPU, with a kernel for all that lies between two matrix products.

What `FixedState` says in some two hundred kernels a step, this says in about eighty, for plain models; the others keep
to that. N: rows, D: width, V: vocabulary, T: places.
"""

from __future__ import annotations

import functools
import logging
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.attention import Attention
from regard.blocks.layers import Dense, Layer, Residual
from regard.blocks.layout import Padded
from regard.blocks.norms import RmsNorm
from regard.decoding.columns import Fixed, FixedState, shares
from regard.models.families import EncoderDecoder, Output

HEADS = (16, 32, 64, 128, 256)
"""Sizes of a head that kernels multiply."""

NUMBERS = (torch.float32, torch.bfloat16, torch.float16)

AnyNorm: TypeAlias = nn.LayerNorm | RmsNorm

_log = logging.getLogger("regard.decoding")


@functools.cache
def works(device: str) -> bool:
    """Whether Triton's kernels run on a kind of device: it compiles them when they are first asked for, or cannot."""
    if device != "cuda":
        return False
    try:
        from regard.decoding import triton_step

        x_ND = torch.ones(1, 16, device=device)
        triton_step.add_norm(x_ND, x_ND, nn.LayerNorm(16, device=device))
    except Exception as error:  # no Triton, no compiler for it, a GPU that it does not know
        _log.info("kernels are not fused, since Triton does not work here: %s", error)
        return False
    return True


def fuses(model: EncoderDecoder) -> bool:
    """Whether a model is as plain as the kernels are."""
    weight = model.target.tokens.weight
    return (
        works(weight.device.type)
        and weight.dtype in NUMBERS
        and not torch.is_autocast_enabled(weight.device.type)
        and shares(model)
        and type(model.output) is Output
        and len({layer.ffn_residual.place for layer in model.decoder}) == 1
        and all(_is_plain(part) for layer in model.decoder for part in layer.children())
    )


def _is_plain(part: nn.Module) -> bool:
    if isinstance(part, Residual):
        plain = part.place in ("pre", "post") and part.after is None and part.scale is None
        return plain and isinstance(part.norm, AnyNorm)
    if not isinstance(part, Attention):
        return True  # the feed-forward is called as it is
    linear = all(type(each) is nn.Linear for each in (part.q, part.k, part.v)) and part.joined is None
    return linear and part.q_norm is None and part.head_size in HEADS and part.value_size in HEADS


class FusedState(FixedState):
    """A `FixedState` for plain models. Its scores have the model's own numbers, and stay in their place, too."""

    def __init__(self, model: EncoderDecoder, memory_BSD: Tensor, layout: Padded, steps: int, bound: int) -> None:
        """For so many steps, of which none has a place beyond the bound."""
        super().__init__(model, memory_BSD, layout, steps, bound)
        assert layout.lengths_B is not None  # as wherever shapes are fixed
        self.lengths_B = layout.lengths_B
        # Made anew for each batch: weights change while a model is trained.
        self.joined = [_joined(layer.attention) for layer in model.decoder]
        """Weight and bias of one product for q, k and v of self-attention, in each layer."""
        places = model.target.position.embed(Padded(1, bound), memory_BSD.device, memory_BSD.dtype)
        self.places_TD = None if places is None else places[0].contiguous()
        self.scores_NV = memory_BSD.new_empty(0, model.output.matrix.shape[0])

    def step(self, tokens_N: Tensor) -> Tensor:
        """`[N, V]`: scores of what follows when each row is continued with its token; overwritten by the next step."""
        rows = len(tokens_N) // self.inputs
        if rows != self.rows:
            self._widen(rows)
        if len(self.scores_NV) != len(tokens_N):
            self.scores_NV = self.scores_NV.new_empty(len(tokens_N), self.scores_NV.shape[1])
        self._write_scores(self._hidden(tokens_N))
        self.time_1 += 1
        return self.scores_NV

    def _hidden(self, tokens_N: Tensor) -> Tensor:
        """`[N, D]`: through all layers. x is the residual stream, y what the next part reads."""
        from regard.decoding.triton_step import add_norm, embed

        model, layers = self.model, list(self.model.decoder)
        target, final = model.target, model.decoder.norm
        post = layers[0].ffn_residual.place == "post"
        x_ND = embed(tokens_N, target.tokens.weight, target.scale, self.places_TD, self.time_1)
        x_ND = x_ND if target.norm is None else target.norm(x_ND)
        norms = [norm for layer in layers for norm in _norms(layer)]
        y_ND = x_ND if post else add_norm(x_ND, None, norms[0])[1]
        # A norm before a part is worked out with the sum that it is the norm of, at the end of the part before.
        assert final is None or isinstance(final, AnyNorm)
        following: list[AnyNorm | None] = [*norms] if post else [*norms[1:], final]
        for part, norm in enumerate(following):
            added_ND = self._part(layers[part // 3], part, y_ND)
            if norm is None:
                return x_ND + added_ND
            x_ND, y_ND = add_norm(x_ND, added_ND, norm)
            x_ND = y_ND if post else x_ND
        return add_norm(y_ND, None, final)[1] if post and final is not None else y_ND

    def _part(self, layer: Layer, number: int, y_ND: Tensor) -> Tensor:
        """What one part of a layer, by its number from the first of all, adds to the stream."""
        from regard.decoding.triton_step import attend_memory, attend_own

        i, which = divmod(number, 3)
        if which == 2:
            return _fed_forward(layer.ffn, y_ND)
        attention = layer.attention if which == 0 else layer.cross
        assert attention is not None  # an encoder-decoder has both in each layer
        if which == 0:
            new_NX = functional.linear(y_ND, *self.joined[i])
            mixed_NX = attend_own(attention, new_NX, self.cells[i], self.seen_NC, self.time_1)
        else:
            mixed_NX = attend_memory(attention, attention.q(y_ND), self.memory[i], self.lengths_B)
        out_ND: Tensor = attention.out(mixed_NX)
        return out_ND

    def _write_scores(self, y_ND: Tensor) -> None:
        """As `Output` works them out, in their place."""
        output = self.model.output
        y_ND = y_ND if output.scale is None else y_ND * output.scale
        if output.bias is None:
            torch.mm(y_ND, output.matrix.T, out=self.scores_NV)
        else:
            torch.addmm(output.bias, y_ND, output.matrix.T, out=self.scores_NV)

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        """Row n goes on from row `rows_N[n]`; where inputs are finished and go, `inputs_B` are those that stay."""
        if inputs_B is None and len(rows_N) == len(self.seen_NC):
            from regard.decoding.triton_step import inherit

            inherit(self.seen_NC, rows_N, self.inputs)
            return
        super().select(rows_N, inputs_B)
        if inputs_B is not None:
            self.lengths_B = self.lengths_B.index_select(0, inputs_B)

    def fixed(self) -> Fixed:
        model, tensors = super().fixed()
        weights = [each for pair in self.joined for each in pair if each is not None]
        return Fixed(model, [*tensors, *weights, *([] if self.places_TD is None else [self.places_TD])])


def _norms(layer: Layer) -> list[AnyNorm]:
    residuals = (layer.attention_residual, layer.cross_residual, layer.ffn_residual)
    return [each.norm for each in residuals if each is not None and isinstance(each.norm, AnyNorm)]


def _joined(attention: Attention) -> tuple[Tensor, Tensor | None]:
    three = (attention.q, attention.k, attention.v)
    biases: list[Tensor | None] = [each.bias for each in three]
    given = [bias for bias in biases if bias is not None]
    return torch.cat([each.weight for each in three]), torch.cat(given) if given else None


def _fed_forward(ffn: nn.Module, y_ND: Tensor) -> Tensor:
    """A feed-forward, of which the usual one needs a kernel less where the product takes on the activation."""
    if type(ffn) is not Dense or ffn.activation is not functional.relu or type(ffn.up) is not nn.Linear:
        plain_ND: Tensor = ffn(y_ND)
        return plain_ND
    bias: Tensor | None = ffn.up.bias
    out_ND: Tensor = ffn(y_ND) if bias is None else ffn.down(torch._addmm_activation(bias, y_ND, ffn.up.weight.T))
    return out_ND
