"""Beam search for an input with words that must occur (Post and Vilar 2018: dynamic beam allocation).

Sequences compete only with those that have met as much of the words as they have: each such bank has its share of the
beam, so that a sequence which has begun a word is not pushed out by likelier ones that have not. Such inputs are
searched one at a time. A word occurs where its tokens stand side by side; words may overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.decoding.choose import NEVER
from regard.decoding.greedy import hypothesis
from regard.decoding.request import Ends, Hypothesis, Job
from regard.decoding.rulebook import Rulebook
from regard.decoding.settings import Beam, Rules
from regard.decoding.source import Source
from regard.errors import InputError

Word = tuple[int, ...]


@dataclass(frozen=True)
class Path:
    """An open sequence, or a candidate to be one."""

    row: int
    """Of the sequence that it continues."""
    tokens: Word
    chances: tuple[float, ...]
    score: float
    bank: int
    """How many tokens of the words are met."""


def needed(must: Sequence[Sequence[int]]) -> list[Word]:
    """The words, without those that occur wherever another one does."""
    words = sorted({tuple(word) for word in must})
    return [word for word in words if not any(word != other and _occurs(word, other) for other in words)]


def met(tokens: Word, words: Sequence[Word]) -> int:
    """Tokens of the words that occur, and of the longest beginning of another word that stands at the end."""
    return sum(len(word) for word in words if _occurs(word, tokens)) + max(map(len, _begun(tokens, words)), default=0)


def _occurs(word: Word, tokens: Word) -> bool:
    return any(tokens[i : i + len(word)] == word for i in range(len(tokens) - len(word) + 1))


def _begun(tokens: Word, words: Sequence[Word]) -> list[Word]:
    """For each word that does not occur, its longest beginning at the end of the tokens, if there is one."""
    found = []
    for word in words:
        if not _occurs(word, tokens):
            sizes = [size for size in range(1, len(word)) if tokens[-size:] == word[:size]]
            found += [word[: sizes[-1]]] if sizes else []
    return found


def nexts(tokens: Word, words: Sequence[Word]) -> set[int]:
    """The tokens that begin a word which does not occur yet, or lead on in one that is begun."""
    wanted = set()
    for word in words:
        if not _occurs(word, tokens):
            sizes = [size for size in range(len(word)) if size == 0 or tokens[-size:] == word[:size]]
            wanted |= {word[size] for size in sizes}
    return wanted


def search(source: Source, job: Job, ends: Ends, rules: Rules, beam: Beam) -> list[Hypothesis]:
    """The best hypotheses of one input that hold every word; an unfinished one where the rules make that impossible."""
    if beam.coverage:
        raise InputError(f"beam.coverage ({beam.coverage}) does not go with words that must occur; set it to 0")
    words = needed(job.wish.must)
    whole = sum(map(len, words))
    book = Rulebook(rules, [job], source, ends)
    state, scores_NV = source.begin([job.tokens], job.longest)
    paths = [Path(0, (), (), 0.0, 0)]
    pool: list[tuple[float, Path]] = []
    for step in range(1, job.longest + 1):
        written_NT = torch.tensor([path.tokens for path in paths], dtype=torch.long, device=source.device)
        chances_NV = book.apply(scores_NV.log_softmax(-1), written_NT.view(len(paths), step - 1), step - 1)
        candidates = _candidates(paths, chances_NV, words, beam.size)
        allowed = [path for path in candidates if path.tokens[-1] != ends.end or path.bank == whole]
        room = job.longest - step
        fitting = [path for path in allowed if whole - path.bank <= room] or allowed
        going = []
        for path in allocate([path for path in fitting if path.tokens[-1] != ends.end], beam.size, whole):
            if room:
                going.append(path)
            else:
                pool.append((path.score / beam.length.divisor(step), path))
        ending = sorted((path for path in allowed if path.tokens[-1] == ends.end), key=lambda path: -path.score)
        pool += [(path.score / beam.length.divisor(step), path) for path in ending[: beam.size]]
        pool.sort(key=lambda entry: (entry[1].bank != whole, -entry[0]))
        pool = pool[: beam.size]
        rewarding = rules.frequency < 0 or rules.presence < 0  # then sums may rise, and nothing bounds them
        if not going or (not rewarding and _settled(pool, going, beam, whole, job.longest, step)):
            break
        rows = torch.tensor([path.row for path in going], device=source.device)
        state.select(rows)
        scores_NV = state.step(torch.tensor([path.tokens[-1] for path in going], device=source.device))
        paths = going
    found = [
        hypothesis(list(path.tokens), score, list(path.chances), path.tokens[-1] == ends.end, rules)
        for score, path in pool[: beam.nbest]
    ]
    return found or [Hypothesis([], NEVER, [], False, False)]


def _candidates(paths: list[Path], chances_NV: torch.Tensor, words: Sequence[Word], size: int) -> list[Path]:
    """The best continuations of all, the best of each, and every one that leads on in a word."""
    sums_NV = torch.tensor([path.score for path in paths], dtype=chances_NV.dtype)[:, None] + chances_NV.cpu()
    vocabulary = sums_NV.shape[1]
    best = sums_NV.flatten().topk(min(2 * size, sums_NV.numel())).indices.tolist()
    chosen = {(index // vocabulary, index % vocabulary) for index in best}
    chosen |= {(row, token) for row, token in enumerate(sums_NV.argmax(-1).tolist())}
    chosen |= {(row, token) for row, path in enumerate(paths) for token in nexts(path.tokens, words)}
    rows = chances_NV.tolist()
    made = []
    for row, token in sorted(chosen):
        path, chance = paths[row], rows[row][token]
        if chance > NEVER:
            tokens = (*path.tokens, token)
            made.append(Path(row, tokens, (*path.chances, chance), path.score + chance, met(tokens, words)))
    return made


def allocate(candidates: list[Path], size: int, whole: int) -> list[Path]:
    """The best of every bank: an equal share of the beam for each, and what one cannot use for the fullest ones."""
    banks = [
        sorted((path for path in candidates if path.bank == bank), key=lambda path: -path.score)
        for bank in range(whole, -1, -1)
    ]
    share = max(size // len(banks), 1)
    taken = [min(share, len(bank)) for bank in banks]
    while sum(taken) > size:  # more banks than beams: the emptiest give way
        taken[max(i for i, count in enumerate(taken) if count)] -= 1
    for i, bank in enumerate(banks):
        taken[i] += min(size - sum(taken), len(bank) - taken[i])
    return sorted(
        (path for bank, count in zip(banks, taken, strict=True) for path in bank[:count]), key=lambda path: -path.score
    )


def _settled(
    pool: list[tuple[float, Path]], going: list[Path], beam: Beam, whole: int, longest: int, step: int
) -> bool:
    """Whether no open sequence can still come among the best; as `Beam.stop` says, of sequences that hold all words."""
    done = [score for score, path in pool if path.bank == whole]
    if beam.stop == "first":
        return len(done) >= beam.size
    wanted = beam.nbest if beam.stop == "all" else beam.size
    if len(done) < wanted:
        return False
    reach = longest if beam.stop == "all" and beam.length.alpha > 0 else step
    bound = max((path.score for path in going), default=-math.inf) / beam.length.divisor(reach)
    return bound <= done[wanted - 1]
