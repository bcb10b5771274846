"""BPE-dropout: repeatable, and distributed as the paper's algorithm says, and as the library's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from random import Random

import pytest
import tokenizers
from text_cases import CORPUS, trained

from regard.errors import InputError
from regard.text.dropout import Merging
from regard.text.settings import Bpe
from regard.text.train import train

MERGES = [("b", "c"), ("a", "b"), ("a", "bc"), ("abc", "ab"), ("c", "a"), ("bc", "a")]
PIECES = ["a", "b", "c", *(left + right for left, right in MERGES)]
VOCABULARY = {piece: number for number, piece in enumerate(PIECES)}


@cache
def distribution(word: tuple[str, ...], rate: float) -> dict[tuple[str, ...], float]:
    """Every outcome with its probability: at each step a merge is left out with `rate`, the first other one is made."""
    ranks = {pair: rank for rank, pair in enumerate(MERGES)}
    found = sorted((ranks[pair], place) for place, pair in enumerate(pairwise(word)) if pair in ranks)
    result: Counter[tuple[str, ...]] = Counter()
    left = 1.0
    for _, place in found:
        merged = (*word[:place], word[place] + word[place + 1], *word[place + 2 :])
        for outcome, chance in distribution(merged, rate).items():
            result[outcome] += left * (1 - rate) * chance
        left *= rate
    result[word] += left
    return dict(result)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("word", ["abc", "abcab", "cabca", "bcabc"])
def test_outcomes_have_the_probabilities_of_the_paper(word: str, rate: float) -> None:
    merging, random, draws = Merging(VOCABULARY, MERGES, None), Random(1), 20_000
    found = Counter(tuple(PIECES[n] for n in merging.sample(word, rate, random)) for _ in range(draws))
    wanted = distribution(tuple(word), rate)
    assert set(found) <= set(wanted)
    for outcome, chance in wanted.items():
        deviation = (chance * (1 - chance) / draws) ** 0.5
        assert abs(found[outcome] / draws - chance) < 5 * deviation + 1e-4, outcome


def test_outcomes_are_those_of_the_library() -> None:
    """Its own generator cannot be seeded, so the bounds are wide: 5 deviations of both samples."""
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(VOCABULARY, MERGES, dropout=0.3))
    merging, random, draws = Merging(VOCABULARY, MERGES, None), Random(2), 20_000
    ours = Counter(tuple(PIECES[n] for n in merging.sample("abc", 0.3, random)) for _ in range(draws))
    others = Counter(tuple(encoding.tokens) for encoding in theirs.encode_batch(["abc"] * draws))
    assert set(ours) == set(others)
    for outcome in ours:
        assert abs(ours[outcome] - others[outcome]) < 5 * (2 * max(ours[outcome], 10)) ** 0.5, outcome


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_nothing_left_out_is_plain_bpe(kind: str) -> None:
    tokenizer = trained(kind)
    texts = [*CORPUS, "unbekannt ☃ 😀", "", "  zwei  Leerzeichen\n", "a" * 100]
    tiny = tokenizer.sample(texts, range(len(texts)), 1e-12)
    assert tiny == tokenizer.ids(texts)
    assert tokenizer.sample(texts, range(len(texts))) == tokenizer.ids(texts)


def characters(tokens: Sequence[str]) -> bool:
    return all(len(token) == 1 or token in ("<unk>",) for token in tokens)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_nearly_everything_left_out_are_characters(kind: str) -> None:
    tokenizer = trained(kind)
    (ids,) = tokenizer.sample([CORPUS[0]], [3], 1 - 1e-12)
    assert characters([tokenizer.token(number) for number in ids])
    assert tokenizer.decode(ids) == CORPUS[0]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_a_seed_makes_it_repeatable(kind: str) -> None:
    """Whatever was sampled before, in whatever order, and by whichever copy."""
    tokenizer = trained(kind)
    seeds = list(range(len(CORPUS)))
    first = tokenizer.sample(CORPUS, seeds, 0.2, start=True, end=True)
    again = tokenizer.sample(CORPUS[::-1], seeds[::-1], 0.2, start=True, end=True)[::-1]
    assert first == again
    assert first == train(tokenizer.settings, CORPUS).sample(CORPUS, seeds, 0.2, start=True, end=True)  # type: ignore[arg-type]
    assert first != tokenizer.sample(CORPUS, [seed + 1000 for seed in seeds], 0.2, start=True, end=True)
    assert tokenizer.decode_batch(first) == CORPUS
    assert all(ids[0] == 1 and ids[-1] == 2 for ids in first)


def test_the_rate_comes_from_the_settings() -> None:
    tokenizer = train(Bpe(size=160, dropout=0.3), CORPUS)
    seeds = range(len(CORPUS))
    assert tokenizer.sample(CORPUS, seeds) == tokenizer.sample(CORPUS, seeds, 0.3) != tokenizer.ids(CORPUS)


def test_a_very_long_word() -> None:
    tokenizer = trained("bpe")
    (ids,) = tokenizer.sample(["Hund" * 20_000], [1], 0.1)
    assert tokenizer.decode(ids) == "Hund" * 20_000


def test_messages() -> None:
    def message(kind: str, seeds: list[int], rate: float) -> str:
        with pytest.raises(InputError) as caught:
            trained(kind).sample(["ein Hund"], seeds, rate)
        return str(caught.value)

    assert message("bpe", [1, 2], 0.1) == "1 texts need as many seeds, not 2"
    assert message("bpe", [1], 1.0) == "rate (1.0) must be at least 0 and less than 1; 0.1 is usual"
    assert message("unigram", [1], 0.1) == (
        "words can be split at random only by plain BPE, and the text.kind is unigram; choose bpe or byte-bpe"
    )
