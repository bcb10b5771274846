"""Beam search with words that must occur (Post and Vilar 2018: dynamic beam allocation).

Sequences compete only with those that contain as many tokens of the words. Each such bank has a share of the beam, so
that more likely sequences without a word do not displace one that has begun it. Such inputs are searched one at a time.
A word occurs where its tokens are consecutive; words may overlap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.decoding.model import SearchModel
from regard.decoding.rules import NEVER, RuleBook
from regard.decoding.settings import Beam, Ends, Hypothesis, Job, Rules
from regard.errors import InputError

Word = tuple[int, ...]

EXACT_WORDS = 8
"""Up to this many missing words, `missing_tokens` tries all orders."""


@dataclass(frozen=True)
class Path:
    """An open sequence or a candidate."""

    row: int
    """Row of the sequence that it continues."""
    tokens: Word
    chances: tuple[float, ...]
    score: float
    bank: int
    """Number of tokens of the words that it contains."""


def needed(must: Sequence[Sequence[int]]) -> list[Word]:
    """The words, without those that another word contains."""
    words = sorted({tuple(word) for word in must})
    return [word for word in words if not any(word != other and _occurs(word, other) for other in words)]


def missing_tokens(tokens: Word, words: Sequence[Word]) -> int:
    """The smallest number of further tokens after which all words occur; words may overlap each other.

    With more than `EXACT_WORDS` missing words it is a lower bound.
    """
    missing = tuple(word for word in words if not _occurs(word, tokens))
    return _least_tokens(tokens[-max(map(len, missing), default=1) :], missing)


@functools.lru_cache(maxsize=4096)
def _least_tokens(tail: Word, missing: tuple[Word, ...]) -> int:
    """The length of the shortest continuation of `tail` with all missing words, of which none contains another."""
    if len(missing) > EXACT_WORDS:
        others = [max(_overlap(other, word) for other in (tail, *missing) if other != word) for word in missing]
        return sum(map(len, missing)) - sum(others)
    orders = ((word, tuple(other for other in missing if other != word)) for word in missing)
    return min((len(word) - _overlap(tail, word) + _least_tokens(word, rest) for word, rest in orders), default=0)


def _overlap(before: Word, word: Word) -> int:
    """The length of the longest beginning of a word at the end of other tokens."""
    sizes = range(min(len(before), len(word) - 1), 0, -1)
    return next((size for size in sizes if before[-size:] == word[:size]), 0)


def met(tokens: Word, words: Sequence[Word]) -> int:
    """Tokens of the words that occur, and of the longest beginning of another word at the end."""
    begun = max((_overlap(tokens, word) for word in words if not _occurs(word, tokens)), default=0)
    return sum(len(word) for word in words if _occurs(word, tokens)) + begun


def _occurs(word: Word, tokens: Word) -> bool:
    return any(tokens[i : i + len(word)] == word for i in range(len(tokens) - len(word) + 1))


def nexts(tokens: Word, words: Sequence[Word]) -> set[int]:
    """The tokens that begin a missing word or continue one that has begun."""
    wanted = set()
    for word in words:
        if not _occurs(word, tokens):
            wanted |= {word[size] for size in range(len(word)) if tokens[len(tokens) - size :] == word[:size]}
    return wanted


def search(model: SearchModel, job: Job, ends: Ends, rules: Rules, beam: Beam) -> list[Hypothesis]:
    """The best hypotheses with all words; an unfinished one if the rules make that impossible."""
    if beam.coverage:
        raise InputError(f"beam.coverage ({beam.coverage}) cannot be combined with words that must occur; set it to 0")
    words = needed(job.wish.must)
    whole = sum(map(len, words))
    book = RuleBook(rules, [job], model, ends)
    state, scores_NV = model.begin(model.lay_out([job.tokens]), job.longest)
    paths = [Path(0, (), (), 0.0, 0)]
    pool: list[tuple[float, Path]] = []
    for step in range(1, job.longest + 1):
        written_NT = torch.tensor([path.tokens for path in paths], dtype=torch.long, device=model.device)
        chances_NV = book.apply(scores_NV.log_softmax(-1), written_NT.view(len(paths), step - 1), step - 1)
        candidates = _candidates(paths, chances_NV, words, beam.size)
        allowed = [path for path in candidates if path.tokens[-1] != ends.end or path.bank == whole]
        room = job.longest - step
        fitting = [path for path in allowed if missing_tokens(path.tokens, words) <= room] or allowed
        going = allocate([path for path in fitting if path.tokens[-1] != ends.end], beam.size, whole)
        ending = sorted((path for path in allowed if path.tokens[-1] == ends.end), key=lambda path: -path.score)
        done = [*([] if room else going), *ending[: beam.size]]
        pool += [(path.score / beam.length.divisor(step), path) for path in done]
        pool.sort(key=lambda entry: (entry[1].bank != whole, -entry[0]))
        pool = pool[: beam.size]
        rewarding = rules.frequency < 0 or rules.presence < 0  # sums may rise, so nothing bounds them
        if not room or not going or (not rewarding and _settled(pool, going, beam, whole, job.longest, step)):
            break
        rows = torch.tensor([path.row for path in going], device=model.device)
        state.select(rows)
        scores_NV = state.step(torch.tensor([path.tokens[-1] for path in going], device=model.device))
        paths = going
    found = [
        Hypothesis.of(list(path.tokens), score, list(path.chances), path.tokens[-1] == ends.end)
        for score, path in pool[: beam.nbest]
    ]
    return found or [Hypothesis([], NEVER, [], False)]


def _candidates(paths: list[Path], chances_NV: torch.Tensor, words: Sequence[Word], size: int) -> list[Path]:
    """The best continuations of all, the best of each path, and every one that continues a word."""
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
    """The best of every bank: an equal share of the beam for each; unused shares go to the fullest banks."""
    banks = [
        sorted((path for path in candidates if path.bank == bank), key=lambda path: -path.score)
        for bank in range(whole, -1, -1)
    ]
    share = max(size // len(banks), 1)
    taken = [min(share, len(bank)) for bank in banks]
    while sum(taken) > size:  # more banks than beams: take from the emptiest
        taken[max(i for i, count in enumerate(taken) if count)] -= 1
    for i, bank in enumerate(banks):
        taken[i] += min(size - sum(taken), len(bank) - taken[i])
    return sorted(
        (path for bank, count in zip(banks, taken, strict=True) for path in bank[:count]), key=lambda path: -path.score
    )


def _settled(
    pool: list[tuple[float, Path]], going: list[Path], beam: Beam, whole: int, longest: int, step: int
) -> bool:
    """Whether no open sequence can still be among the best, by `Beam.stop`, counting sequences with all words."""
    done = [score for score, path in pool if path.bank == whole]
    if beam.stop == "first":
        return len(done) >= beam.size
    wanted = beam.nbest if beam.stop == "all" else beam.size
    if len(done) < wanted:
        return False
    reach = longest if beam.stop == "all" and beam.length.alpha > 0 else step
    bound = max((path.score for path in going), default=-math.inf) / beam.length.divisor(reach)
    return bound <= done[wanted - 1]
