"""What each layer of a run would say, with what a glance at it needs: shares that agree, beside those of a guess."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.look.answers import class_name, names_of_classes, token_name
from regard.look.lens import TOP, WRITTEN, Reader, Said, outputs_of, reader_of, streams_of
from regard.look.study import Run, Study
from regard.models.heads import MaskedHead


@dataclass(frozen=True)
class LayerSays:
    """What one layer would say, place by place."""

    name: str
    """Where the stream was read: `decoder.residual` before the first layer."""
    tokens: list[list[int]]
    """The likeliest tokens, or classes."""
    chances: list[list[float]]
    """Their probabilities."""
    entropy: list[float]
    """In nats."""
    final_chance: list[float]
    final_rank: list[int]
    """Of the model's own answer; 0 is the first."""
    actual_chance: list[float | None]
    actual_rank: list[int | None]
    """Of what is really there."""
    agrees: float
    """The share of places where its first guess is the model's answer."""
    right: float | None
    """The share of places where its first guess is what is really there."""


@dataclass(frozen=True)
class Lensed:
    """What all layers would say of a run."""

    output: str
    stack: str
    each: bool
    """Whether there is an answer for each token; else one for the whole input."""
    layers: list[LayerSays]
    """The embeddings first; the last says what the model says."""
    texts: dict[int, str]
    """Tokens, or classes, as they are shown."""
    final: list[int]
    """The model's answers."""
    actual: list[int | None]
    """What is really there, where anybody knows."""
    first: list[int]
    """For each place, the first layer whose first guess is the model's answer."""
    settled: list[int]
    """For each place, the layer from which on it stays so."""
    choices: int
    """How many tokens, or classes, there are."""
    constant: float
    """The share of places that one and the same guess would get, were it the most frequent of the model's answers."""
    constant_right: float | None
    """The same of what is really there."""


def lensed(study: Study, run: Run, output: str | None = None, top: int = TOP) -> Lensed:
    """What each layer would say of a run, with the run's heads silent.

    `output` is one of `outputs_of`; none: the first.
    """
    known = outputs_of(study.loaded)
    output = known[0] if output is None and known else output
    reader = reader_of(study.loaded, output)
    names = streams_of(study.loaded, reader.stack)
    final_P = _said(study, run, reader, names[-1], None, top)[1][:, 0]
    actual = _actual(study, run, output) or [None] * len(final_P)
    asked_P2 = torch.stack([final_P, torch.tensor([0 if token is None else token for token in actual])], -1)
    layers = [_layer(name, _said(study, run, reader, name, asked_P2, top)[0], asked_P2, actual) for name in names]
    agree_LP = torch.tensor([[row[0] for row in layer.tokens] for layer in layers]) == final_P
    told = [token for token in actual if token is not None]
    final: list[int] = final_P.tolist()
    return Lensed(
        output=output or "",
        stack=reader.stack,
        each=not reader.whole,
        layers=layers,
        texts=_texts(
            study, output, {*final, *told, *(token for layer in layers for row in layer.tokens for token in row)}
        ),
        final=final,
        actual=actual,
        first=agree_LP.int().argmax(0).tolist(),
        settled=(len(layers) - agree_LP.flip(0).int().cumprod(0).sum(0)).tolist(),
        choices=reader.scores(_stream(study, run, names[-1])[:, :1]).shape[-1],
        constant=_most(final),
        constant_right=_most(told) if told else None,
    )


def _stream(study: Study, run: Run, name: str) -> Tensor:
    """`[1, T, D]`, as the model has it."""
    like = next(study.network.parameters())
    return study.tensor(run.key, name)[None].to(like.device, like.dtype)


def _said(study: Study, run: Run, reader: Reader, name: str, asked_PA: Tensor | None, top: int) -> tuple[Said, Tensor]:
    """What a layer would say: P places, those of the tokens or a single one; and what was asked after."""
    stream = _stream(study, run, name)
    asked = None if asked_PA is None else asked_PA.to(stream.device)
    with torch.inference_mode():
        said, used = reader.said(stream, asked if reader.whole or asked is None else asked[None], top)
    rows = [each if reader.whole else each[0] for each in (*said, used)]
    *found, after = (each.cpu() for each in rows)
    return Said(*found), after


def _layer(name: str, said: Said, asked_P2: Tensor, actual: list[int | None]) -> LayerSays:
    chances, ranks = said.asked_probabilities.tolist(), said.ranks.tolist()
    known = [place for place, token in enumerate(actual) if token is not None]
    agree_P2 = (said.tokens[:, :1] == asked_P2).float()
    return LayerSays(
        name=name,
        tokens=said.tokens.tolist(),
        chances=said.probabilities.tolist(),
        entropy=said.entropies.tolist(),
        final_chance=[chance for chance, _ in chances],
        final_rank=[rank for rank, _ in ranks],
        actual_chance=[None if token is None else chance for token, (_, chance) in zip(actual, chances, strict=True)],
        actual_rank=[None if token is None else rank for token, (_, rank) in zip(actual, ranks, strict=True)],
        agrees=float(agree_P2[:, 0].mean()),
        right=float(agree_P2[known, 1].mean()) if known else None,
    )


def _actual(study: Study, run: Run, output: str | None) -> list[int | None]:
    """What is really there at each place; nothing where nobody knows."""
    if output == WRITTEN:
        return run.read.follows
    return [*run.sides["encoder"].ids] if _speaks(study, output) else []


def _speaks(study: Study, output: str | None) -> bool:
    """Whether an output says tokens, and not classes."""
    heads = getattr(study.network, "heads", {})
    return output not in heads or isinstance(heads[output], MaskedHead)


def _texts(study: Study, output: str | None, tokens: Collection[int]) -> dict[int, str]:
    if _speaks(study, output):
        return {token: token_name(study.loaded, token) for token in sorted(tokens)}
    names = names_of_classes(study.loaded, output or "")
    return {number: class_name(names, number) for number in sorted(tokens)}


def _most(answers: list[int]) -> float:
    """The share of the most frequent one."""
    return Counter(answers).most_common(1)[0][1] / len(answers)
