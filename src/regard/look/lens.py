"""The logit lens (nostalgebraist 2020): what each layer would say, if the model ended there.

The residual stream after each layer goes through the last norm and the output that the model has at its end. Early
layers were never trained to be read so: take it as a sketch of when an answer appears, not of what a layer knows.

L: layers and before them the embeddings, V: vocabulary; positions are `[B, T]`, or `[N]` of a packed batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.look.names import names_of
from regard.look.network import network_of
from regard.look.record import record
from regard.look.sides import Given
from regard.models.build import Model
from regard.models.decoder import Decoder
from regard.models.encoder import Encoder
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.heads import MaskedHead
from regard.tasks.loaded import Loaded

TOP = 5
"""Likeliest tokens that are kept."""


class Lens(NamedTuple):
    """What each layer would say at each position."""

    names: list[str]
    """Where the stream was read, `decoder.residual` (before the first layer) first."""
    tokens: Tensor
    """`[L, ..., top]`: the likeliest tokens."""
    probabilities: Tensor
    """`[L, ..., top]`: their probabilities."""
    answers: Tensor
    """`[...]`: the token that is asked after; the last layer's own unless others were given."""
    answer_probabilities: Tensor
    """`[L, ...]`: how likely it is in each layer."""
    ranks: Tensor
    """`[L, ...]`: how many tokens are likelier than it; 0 is the first."""


def lens(
    model: nn.Module | Loaded,
    *batch: Given,
    answers: Tensor | None = None,
    top: int = TOP,
    head: str | None = None,
) -> Lens:
    """What each layer of a model that writes text, or fills gaps, would say.

    The batch is what the model is called with: tokens and layouts. `answers` are the tokens whose probability is
    followed. `head` names the head of an encoder that has several for masked words.
    """
    network = network_of(model)
    stack, last = _reading(network, head)
    names = [name for name in names_of(network) if name.startswith(f"{stack}.") and _is_stream(name)]
    with torch.no_grad():
        with record(model, *names, grad=True) as seen:  # the tensors themselves, on their device
            network(*batch)
        streams = [seen.calls(name)[0] for name in names]
        answers = last(streams[-1]).argmax(-1) if answers is None else answers.to(streams[-1].device)
        each = [_said(last(stream), answers, top) for stream in streams]
    tokens, probabilities, chances, ranks = (torch.stack(column).cpu() for column in zip(*each, strict=True))
    return Lens(names, tokens, probabilities, answers.cpu(), chances, ranks)


def _is_stream(name: str) -> bool:
    """Whether it is the residual stream between layers: `decoder.residual`, `decoder.3.residual`."""
    return name.endswith(".residual") and name.count(".") <= 2


class _Last(nn.Module):
    """The end of a model: from the residual stream to scores over the vocabulary."""

    def __init__(self, norm: nn.Module | None, output: nn.Module) -> None:
        super().__init__()
        self.norm, self.output = norm, output

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(x if self.norm is None else self.norm(x))
        return scores


def _reading(network: Model, head: str | None) -> tuple[str, _Last]:
    """The stack whose stream is read, and what turns it into scores."""
    if isinstance(network, Decoder | EncoderDecoder):
        return "decoder", _Last(network.decoder.norm, network.output)
    masked = {name: each for name, each in network.heads.items() if isinstance(each, MaskedHead)}
    if not isinstance(network, Encoder) or not masked:
        raise InputError(
            f"a model of kind {network.settings.kind} without a head for masked words says no tokens; give one that "
            "writes text, or add a head of kind masked"
        )
    if head is not None and head not in masked:
        raise InputError(f"head ({head}) is not one for masked words; choose {' or '.join(masked)}")
    if head is None and len(masked) > 1:
        raise InputError(f"there are {len(masked)} heads for masked words; choose one: head={next(iter(masked))!r}")
    return "encoder", _Last(network.encoder.norm, masked[head or next(iter(masked))])


def _said(scores: Tensor, answers: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Likeliest tokens and their probabilities; probability and rank of the answers."""
    chances = scores.float().softmax(-1)
    best, tokens = chances.topk(min(top, chances.shape[-1]), -1)
    asked = scores.gather(-1, answers[..., None])
    return tokens, best, chances.gather(-1, answers[..., None])[..., 0], (scores > asked).sum(-1)
