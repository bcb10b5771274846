"""Continuing prompts in a running batch, against one whole pass for each token; sampling against its distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from decoding_cases import END, continuer, inputs

from regard.blocks.settings import Attention, Learned
from regard.decoding.continuation import Continuation, Prefixes, Prompt, TextRow
from regard.decoding.settings import GenerateOptions, Greedy, Rules, Sampling
from regard.decoding.speculative import Drafter, LookupDrafter, ModelDrafter
from regard.errors import InputError
from regard.models.build import build
from regard.models.families import Decoder
from regard.models.settings import Decoder as DecoderSettings

VOCABULARY = 12


def run(batch: Continuation, prompts: list[Prompt]) -> list[list[int]]:
    rows = batch.add(prompts)
    while batch.rows:
        batch.step()
    return [row.written for row in rows]


def logits(model: Decoder, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0, -1].double().numpy()


def greedy(model: Decoder, tokens: list[int], longest: int) -> list[int]:
    written: list[int] = []
    while len(written) < longest and END not in written:
        written.append(int(logits(model, [*tokens, *written]).argmax()))
    return written


def test_rows_join_and_leave() -> None:
    """Every text is the one that a pass over all its tokens gives, whatever the other rows are."""
    model = continuer(VOCABULARY)
    given = [prompt[:-1] or [3] for prompt in inputs(9, VOCABULARY)]
    batch, found, waiting = Continuation(model), [], list(enumerate(given))
    while waiting or batch.rows:
        for number, tokens in waiting[:2]:
            (row,) = batch.add([Prompt(tokens, 5 + number, ends=frozenset([END]))])
            found.append((tokens, row))
        waiting = waiting[2:]
        batch.step()
    for tokens, row in found:
        assert row.written == greedy(model, tokens, row.prompt.longest)
        assert row.finish == ("stop" if row.written[-1] == END else "length")


def test_chances_and_alternatives_are_those_of_the_model() -> None:
    model = continuer(VOCABULARY)
    batch = Continuation(model)
    (row,) = batch.add([Prompt([4, 5], 6, Sampling(temperature=0.5, top_k=3), alternatives=4)])
    while batch.rows:
        ((_, (written,)),) = batch.step()
        scores = logits(model, row.tokens[:-1])
        logs = scores - np.log(np.exp(scores).sum())
        assert written.chance == pytest.approx(logs[written.token])
        best = sorted(range(VOCABULARY), key=lambda token: -logs[token])[:4]
        assert [token for token, _ in written.alternatives] == best
        assert [chance for _, chance in written.alternatives] == pytest.approx(logs[best])


def shares(scores: np.ndarray, prompt: list[int], written: list[int], options: dict[str, Any]) -> np.ndarray:
    """The distribution of the next token by the published formulas, in NumPy."""
    scores, use = scores.copy(), GenerateOptions(**options)
    for token in {*prompt, *written}:
        scores[token] = scores[token] * use.repetition if scores[token] < 0 else scores[token] / use.repetition
    for token, count in Counter(written).items():
        scores[token] -= count * use.frequency + use.presence
    history = [*prompt, *written]
    for start in range(len(history) - use.ngram + 1 if use.ngram else 0):
        if use.ngram == 1 or history[start : start + use.ngram - 1] == history[-use.ngram + 1 :]:
            scores[history[start + use.ngram - 1]] = -np.inf
    exp = np.exp((scores - scores.max()) / use.temperature)
    found = exp / exp.sum()
    order = np.argsort(-found, kind="stable")
    if use.top_k is not None:
        found[order[use.top_k :]] = 0
    found /= found.sum()
    total = 0.0
    for token in order:
        if total >= use.top_p:
            found[token] = 0
        total += found[token]
    found /= found.sum()
    found[found < use.min_p * found.max()] = 0
    return found / found.sum()


def test_filters_and_penalties_are_the_published_ones() -> None:
    """The scores that are drawn from, for every combination, against NumPy."""
    from regard.decoding.continuation import filtered

    generator = np.random.default_rng(0)
    choices: dict[str, list[Any]] = {
        "temperature": [1.0, 0.7, 1.6],
        "top_k": [None, 5],
        "top_p": [1.0, 0.8],
        "min_p": [0.0, 0.15],
        "repetition": [1.0, 1.4],
        "frequency": [0.0, 0.3],
        "presence": [0.0, 0.5],
        "ngram": [0, 2],
    }
    for values in itertools.product(*choices.values()):
        options = dict(zip(choices, values, strict=True))
        use = GenerateOptions(**options)
        prompt, written = ([int(x) for x in generator.integers(0, 12, size)] for size in (5, 4))
        row = TextRow(Prompt(prompt, 9, use.search(), use.rules()))
        row.tokens += written
        scores = generator.normal(0, 2, 12)
        found = filtered(torch.tensor(scores)[None], [row])[0].softmax(-1).numpy()
        assert found == pytest.approx(shares(scores, prompt, written, options), abs=1e-12), options


def chi_squared(counts: Counter[Any], expected: dict[Any, float]) -> float:
    """Pearson's statistic minus its mean, in standard deviations; outcomes of few draws are one outcome."""
    total = sum(counts.values())
    assert set(counts) <= {outcome for outcome, share in expected.items() if share > 0}
    cells, rest, seen = [], 0.0, 0
    for outcome, share in expected.items():
        if total * share >= 8:
            cells.append((counts[outcome], total * share))
        else:
            rest, seen = rest + total * share, seen + counts[outcome]
    if rest > 1e-9:
        cells.append((seen, rest))
    degrees = max(len(cells) - 1, 1)
    return (sum((found - mean) ** 2 / mean for found, mean in cells) - degrees) / (2 * degrees) ** 0.5


def pairs(model: Decoder, prompt: list[int], options: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """The probability of each pair of next tokens."""
    found = {}
    for first, share in enumerate(shares(logits(model, prompt), prompt, [], options)):
        after = shares(logits(model, [*prompt, first]), prompt, [first], options)
        found |= {(first, second): share * float(chance) for second, chance in enumerate(after)}
    return found


KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.7},
    {"top_k": 4},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"repetition": 1.5, "frequency": 0.4, "presence": 0.2},
    {"temperature": 1.4, "top_k": 8, "top_p": 0.9, "min_p": 0.02, "frequency": 0.5},
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "lookup", "model"])
def test_samples_have_the_distribution_of_the_model(kind: str) -> None:
    """Pairs of tokens of 1,500 samples, by chi-squared, with and without guesses."""
    model, prompt, count = continuer(VOCABULARY, dtype=torch.float32), [4, 5, 6, 2, 4, 5, 6, 3, 4, 5], 1_500
    other = continuer(VOCABULARY, seed=5, dtype=torch.float32)
    for options in KINDS:
        use = GenerateOptions(**options)
        drafter: dict[str, Drafter | None] = {"plain": None, "lookup": LookupDrafter(), "model": ModelDrafter(other)}
        batch = Continuation(model, drafter=drafter[kind])
        prompts = [Prompt(prompt, 3, use.search(), use.rules(), sample=number) for number in range(count)]
        counts = Counter(tuple(written[:2]) for written in run(batch, prompts))
        assert abs(chi_squared(counts, pairs(model, prompt, options))) < 4, options


def test_guesses_do_not_change_the_greedy_text() -> None:
    """With penalties too; a good guesser needs fewer steps, and a copied guess leaves samples as they are."""
    model = continuer(VOCABULARY)
    for search, rules in itertools.product((Greedy(), Sampling(seed=3)), (Rules(), Rules(repetition=1.3, ngram=4))):
        prompts = [
            Prompt(tokens, 30, search, rules, frozenset([END]), sample=number)
            for number, tokens in enumerate([[2, 3, 4, 5, 2, 3, 4], [5, 6, 5, 6, 5], [7]])
        ]
        expected = run(Continuation(model), prompts)
        assert run(Continuation(model, drafter=LookupDrafter()), prompts) == expected
        if isinstance(search, Greedy):
            for drafter in (ModelDrafter(model), ModelDrafter(continuer(VOCABULARY, seed=6))):
                assert run(Continuation(model, drafter=drafter), prompts) == expected
    batch, steps = Continuation(model, drafter=ModelDrafter(model)), 0
    batch.add([Prompt([4, 5, 6], 30)])
    while batch.rows:
        batch.step()
        steps += 1
    assert steps == 6  # four guesses and one more token each


def test_prefixes_are_read_once_and_change_nothing() -> None:
    model, prefixes = continuer(VOCABULARY), Prefixes()
    common = [int(x) for x in np.random.default_rng(0).integers(2, VOCABULARY, 40)]
    read: list[int] = []

    def count(_: object, given: tuple[Any, ...]) -> None:
        read.append(given[0].numel())

    for prompts in ([[*common, 3], [*common, 4, 5], common], [[*common, 6, 7]], [[*common, 6, 7, 8]]):
        expected = [greedy(model, tokens, 6) for tokens in prompts]
        handle = model.embedding.register_forward_pre_hook(count)
        ends = frozenset([END])
        asked = [Prompt(tokens, 6, ends=ends, keep=True) for tokens in prompts]
        assert run(Continuation(model, prefixes=prefixes), asked) == expected
        handle.remove()
    # The prefix once, the rest of the first prompts, then one token for each row and step.
    assert read[0] == 39
    assert max(read[1:]) <= 6
    assert len(prefixes.known) <= 8


def test_context_that_is_full() -> None:
    """Learned positions: the text ends, or goes on from the newer half of the context."""
    settings = DecoderSettings(vocabulary=VOCABULARY, width=8, depth=1, attention=Attention(heads=2))
    model = build(settings.changed({"position": {"kind": "learned", "length": 8}})).double().eval()
    assert isinstance(model.settings.position, Learned)
    (found,) = run(Continuation(model), [Prompt([2, 3, 4], 20)])
    assert found == greedy(model, [2, 3, 4], 6)
    for rows in (1, 3):
        prompts = [Prompt([2, 3, 4][: 3 - number], 20, slide=True) for number in range(rows)]
        for prompt, found in zip(prompts, run(Continuation(model), prompts), strict=True):
            tokens, start = list(prompt.tokens), 0
            while len(tokens) < len(prompt.tokens) + 20:
                start = len(tokens) - 4 if len(tokens) - start > 8 else start
                tokens.append(int(logits(model, tokens[start:]).argmax()))
            assert found == tokens[len(prompt.tokens) :]
    guessed = run(Continuation(model, drafter=LookupDrafter()), [Prompt([2, 3, 4], 20, slide=True)])
    assert guessed == run(Continuation(model), [Prompt([2, 3, 4], 20, slide=True)])


def test_prompts_that_cannot_be_continued() -> None:
    batch = Continuation(continuer(VOCABULARY), limit=4)
    for tokens, message in (([], "empty"), ([2] * 5, "5 tokens, more than the context"), ([99], "token 99")):
        with pytest.raises(InputError, match=message):
            batch.add([Prompt(tokens, 5)])


def test_no_ngram_occurs_twice_in_rows_that_join_later() -> None:
    """Not across the end of a prompt either; without any token left, the text ends."""
    model = continuer(VOCABULARY)
    for size in (1, 2):
        batch, rows = Continuation(model), list[TextRow]()
        for prompt in ([4, 5, 6], [7, 4], [3]):
            rows += batch.add([Prompt(prompt, 40, rules=Rules(ngram=size))])
            batch.step()
        while batch.rows:
            batch.step()
        for row in rows:
            grams = Counter(zip(*(row.tokens[start:] for start in range(size)), strict=False))
            assert max(grams.values()) == 1
            assert row.finish == "length"
            assert size > 1 or {*row.tokens} == {*range(VOCABULARY)}
