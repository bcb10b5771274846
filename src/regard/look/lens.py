"""The logit lens (nostalgebraist 2020): what each layer would say, if the model ended there.

The residual stream after each layer goes through the last norm and the output that the model has at its end: that over
a vocabulary, or a head of an encoder. Early layers were never trained to be read so: take it as a sketch of when an
answer appears, not of what a layer knows.

L: layers and before them the embeddings, A: tokens or classes that are asked after; positions are `[B, T]`, or `[N]` of
a packed batch, or `[B]` where a head answers once for a whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.layout import Layout
from regard.blocks.recording import names_of, network_of, record
from regard.errors import InputError
from regard.look.heads import entropy
from regard.look.sides import Given
from regard.models.build import Model
from regard.models.families import Decoder, Encoder, EncoderDecoder
from regard.models.heads import MaskedHead, SequenceHead, TokenHead
from regard.models.settings import Tagging
from regard.use.model import Loaded

TOP = 5
"""Likeliest tokens that are kept."""
AT_ONCE = 2**24
"""Scores that are worked out at a time: those of a long text over a large vocabulary would take gigabytes."""
WRITTEN = "output"
"""The name of the output over a vocabulary, in models that write."""


class Said(NamedTuple):
    """What one layer would say at each position."""

    tokens: Tensor
    """`[..., top]`: the likeliest tokens, or classes."""
    probabilities: Tensor
    """`[..., top]`: their probabilities."""
    entropies: Tensor
    """`[...]`, in nats: how undecided it is."""
    asked_probabilities: Tensor
    """`[..., A]`: how likely those are that were asked after."""
    ranks: Tensor
    """`[..., A]`: how many are likelier than each of them; 0 is the first."""


class Lens(NamedTuple):
    """What each layer would say at each position."""

    names: list[str]
    """Where the stream was read, `decoder.residual` (before the first layer) first."""
    tokens: Tensor
    """`[L, ..., top]`: the likeliest tokens, or classes."""
    probabilities: Tensor
    """`[L, ..., top]`: their probabilities."""
    answers: Tensor
    """`[...]`: the token that is asked after; the last layer's own unless others were given."""
    answer_probabilities: Tensor
    """`[L, ...]`: how likely it is in each layer."""
    ranks: Tensor
    """`[L, ...]`: how many tokens are likelier than it; 0 is the first."""
    entropies: Tensor
    """`[L, ...]`, in nats: how undecided each layer is."""


class Reader:
    """The end of a model: what turns the residual stream of a stack into scores."""

    def __init__(
        self, stack: str, norm: nn.Module | None, score: Callable[[Tensor, Layout | None], Tensor], whole: bool = False
    ) -> None:
        """`whole`: it answers once for a whole sequence."""
        self.stack, self.norm, self.score, self.whole = stack, norm, score, whole

    def scores(self, stream: Tensor, layout: Layout | None = None) -> Tensor:
        """`[..., C]` of a stream `[..., D]`; `[B, C]` where it answers once for each sequence."""
        return self.score(stream if self.norm is None else self.norm(stream), layout)

    def said(
        self, stream: Tensor, asked: Tensor | None = None, top: int = TOP, layout: Layout | None = None
    ) -> tuple[Said, Tensor]:
        """What a layer with this stream would say, and `[..., A]`, what was asked after: its own first unless given."""
        if self.whole:
            return _said(self.scores(stream, layout), asked, top)
        flat, wanted = stream.flatten(0, -2), None if asked is None else asked.flatten(0, -2)
        size = max(AT_ONCE // self.scores(flat[:1]).shape[-1], 1)
        pieces = [slice(start, start + size) for start in range(0, len(flat), size)]
        parts = [_said(self.scores(flat[each]), None if wanted is None else wanted[each], top) for each in pieces]
        joined = [torch.cat(column) for column in zip(*((*said, each) for said, each in parts), strict=True)]
        *said, asked = (each.reshape(*stream.shape[:-1], *each.shape[1:]) for each in joined)
        return Said(*said), asked


def outputs_of(model: nn.Module | Loaded) -> list[str]:
    """The outputs of a model through which its layers can be read: `output` of one that writes, else its heads."""
    network = network_of(model)
    if isinstance(network, Decoder | EncoderDecoder):
        return [WRITTEN]
    return [name for name, head in network.heads.items() if _answers(network, name, head)]


def reader_of(model: nn.Module | Loaded, head: str | None = None) -> Reader:
    """What reads the layers of a model; `head` names one of several, unless there is one for masked words alone."""
    network, known = network_of(model), outputs_of(model)
    if not known:
        raise InputError(
            f"a model of kind {network.settings.kind} without a head that answers says nothing; give one that writes "
            "text, or add a head of kind masked, classification or tagging"
        )
    if head is not None and head not in known:
        raise InputError(f"head ({head[:40]}) is not one that layers can be read by; choose {' or '.join(known)}")
    if isinstance(network, Decoder | EncoderDecoder):
        output = network.output
        return Reader("decoder", network.decoder.norm, lambda x, layout: output(x))
    masked = [name for name in known if isinstance(network.heads[name], MaskedHead)]
    if head is None and len(masked or known) > 1:
        raise InputError(f"there are {len(known)} heads that answer; choose one: head={known[0]!r}")
    chosen = network.heads[head or (masked or known)[0]]
    whole = isinstance(chosen, SequenceHead)
    return Reader("encoder", network.encoder.norm, lambda x, layout: chosen(x, layout), whole)


def streams_of(model: nn.Module | Loaded, stack: str) -> list[str]:
    """The names of the residual stream between the layers of a stack: `decoder.residual`, `decoder.0.residual`, …"""
    return [name for name in names_of(model) if name.startswith(f"{stack}.") and _is_stream(name)]


def lens(
    model: nn.Module | Loaded,
    *batch: Given,
    answers: Tensor | None = None,
    top: int = TOP,
    head: str | None = None,
) -> Lens:
    """What each layer of a model that writes text, fills gaps or tells classes apart would say.

    The batch is what the model is called with: tokens and layouts, or images. `answers` are the tokens (or classes)
    whose probability is followed. `head` names the head of an encoder that has several.
    """
    network, reader = network_of(model), reader_of(model, head)
    names = streams_of(network, reader.stack)
    layout = batch[1] if isinstance(network, Encoder) and len(batch) > 1 else None
    assert layout is None or not isinstance(layout, Tensor)
    with torch.no_grad():
        with record(model, *names, grad=True) as seen:  # the tensors themselves, on their device
            network(*batch)
        streams = [seen.calls(name)[0] for name in names]
        asked = None if answers is None else answers.to(streams[-1].device)[..., None]
        last, asked = reader.said(streams[-1], asked, top, layout)
        each = [*(reader.said(stream, asked, top, layout)[0] for stream in streams[:-1]), last]
    found = Said(*(torch.stack(column).cpu() for column in zip(*each, strict=True)))
    chances, ranks = found.asked_probabilities[..., 0], found.ranks[..., 0]
    return Lens(names, found.tokens, found.probabilities, asked[..., 0].cpu(), chances, ranks, found.entropies)


def _is_stream(name: str) -> bool:
    """Whether it is the residual stream between layers: `decoder.residual`, `decoder.3.residual`."""
    return name.endswith(".residual") and name.count(".") <= 2


def _answers(network: Model, name: str, head: nn.Module) -> bool:
    """Whether a head gives a distribution over answers; the ends of spans and pooled vectors are none."""
    tags = isinstance(head, TokenHead) and isinstance(getattr(network.settings, "heads", {})[name], Tagging)
    return tags or isinstance(head, MaskedHead | SequenceHead)


def _said(scores: Tensor, asked: Tensor | None, top: int) -> tuple[Said, Tensor]:
    scores = scores.float()
    chances = scores.softmax(-1)
    best, tokens = chances.topk(min(top, chances.shape[-1]), -1)
    asked = tokens[..., :1] if asked is None else asked
    bars = scores.gather(-1, asked)
    ranks = torch.stack([(scores > bar).sum(-1, dtype=torch.int32) for bar in bars[..., None].unbind(-2)], -1)
    return Said(tokens, best, entropy(chances), chances.gather(-1, asked), ranks), asked
