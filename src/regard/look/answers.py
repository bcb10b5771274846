"""What a model's scores say, for people: the likeliest tokens or classes, with their probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from regard.look.reading import Read, class_names, shown, vocabulary_of
from regard.models.settings import Classification, Masked, NextSentence, Tagging
from regard.use.model import Loaded

CANDIDATES = 5
"""Of each place, the likeliest answers that are told."""


@dataclass(frozen=True)
class Candidate:
    """Something that a model might answer."""

    text: str
    id: int
    chance: float
    """Its probability."""


@dataclass(frozen=True)
class Row:
    """The answers for one place, the likeliest first."""

    candidates: list[Candidate]
    actual: Candidate | None
    """What does follow, where that is known."""


@dataclass(frozen=True)
class Answer:
    """What one output of a model says: for each token, or once for the whole input."""

    name: str
    each: bool
    """Whether there is a row for each token."""
    rows: list[Row]


def answers_in(loaded: Loaded, found: Read, scores: Mapping[str, Tensor]) -> list[Answer]:
    """What the scores of an input say, by the outputs of the model."""
    if "output.logits" in scores:
        return [_tokens(loaded, "output", scores["output.logits"], found.follows)]
    answers = []
    for name, head in getattr(loaded.settings, "heads", {}).items():
        given = scores[f"heads.{name}"]
        if isinstance(head, Masked):
            answers.append(_tokens(loaded, name, given, found.sides["encoder"].ids))
        elif isinstance(head, Classification | NextSentence | Tagging):
            names = names_of_classes(loaded, name)
            rows = [Row(_classes(names, row), None) for row in given]
            answers.append(Answer(name, isinstance(head, Tagging), rows))
    return answers


def token_name(loaded: Loaded, token: int) -> str:
    """A token of the vocabulary that is written, as it is shown."""
    tokenizer = vocabulary_of(loaded)
    return str(token) if tokenizer is None or token >= tokenizer.size else shown(tokenizer, token)


def names_of_classes(loaded: Loaded, output: str) -> Sequence[str]:
    """The classes that an output tells apart, as far as they have names."""
    tags = isinstance(getattr(loaded.settings, "heads", {}).get(output), Tagging)
    return class_names(loaded, "tags" if tags else "label")


def class_name(names: Sequence[str], number: int) -> str:
    """One of `names_of_classes`, or what it is called without a name."""
    return names[number] if number < len(names) else f"class {number}"


def _tokens(loaded: Loaded, name: str, scores_TV: Tensor, actual: list[int] | list[int | None]) -> Answer:
    tokenizer = vocabulary_of(loaded)
    assert tokenizer is not None  # texts have been read
    scores_TV = scores_TV.float()
    best = scores_TV.topk(min(CANDIDATES, scores_TV.shape[-1], tokenizer.size), dim=-1)
    whole_T = scores_TV.logsumexp(-1)
    rows = []
    for place, follows in enumerate(actual):
        whole = float(whole_T[place])
        found = zip(best.indices[place].tolist(), (best.values[place] - whole).exp().tolist(), strict=True)
        candidates = [Candidate(token_name(loaded, token), token, chance) for token, chance in found]
        real = None
        if follows is not None:
            chance = float((scores_TV[place, follows] - whole).exp())
            real = Candidate(token_name(loaded, follows), follows, chance)
        rows.append(Row(candidates, real))
    return Answer(name, True, rows)


def _classes(names: Sequence[str], scores_C: Tensor) -> list[Candidate]:
    chances, order = scores_C.float().softmax(-1).sort(descending=True)
    pairs = list(zip(order.tolist(), chances.tolist(), strict=True))[:CANDIDATES]
    return [Candidate(class_name(names, i), i, chance) for i, chance in pairs]
