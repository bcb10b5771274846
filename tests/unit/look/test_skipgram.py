"""Skip-gram vectors: the gradient against autograd, counting and windows by hand, and what is learned."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from regard.errors import DataError, SettingsError
from regard.look import skipgram, table
from regard.look.analogies import accuracy, analogy, nearest, similarity
from regard.look.skipgram import BLOCK, GROUP, Progress, SkipGram, read, slopes, train, words_of

SMALL = SkipGram(width=16, window=3, least=1, sample=0.0, epochs=40, batch=512, rate=0.2, seed=1)


def test_slopes_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    blocks, context, groups, drawn = GROUP + 3, BLOCK + 4, 2, 5
    u, v, n = (
        torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
        for shape in ((blocks, BLOCK), (blocks, context), (groups, drawn))
    )
    seen = (torch.rand(blocks, BLOCK, context) < 0.2).double()
    loss = torch.zeros((), dtype=torch.float64)
    for block in range(blocks):
        of_group = n[block // GROUP]
        loss = loss - (functional.logsigmoid(u[block] @ v[block].mT) * seen[block]).sum()
        each = functional.logsigmoid(-(u[block] @ of_group.mT)).sum(1)
        loss = loss - (each * seen[block].sum(1)).sum() * 3 / drawn
    wanted = torch.autograd.grad(loss, (u, v, n))
    with torch.no_grad():
        for found, slope in zip(slopes(u, v, n, seen, 3), wanted, strict=True):
            assert_close(found, slope, rtol=1e-10, atol=1e-12)
        assert skipgram.mean_loss(u, v, n, seen, 3) == pytest.approx(float(loss / seen.sum()))


def test_words_are_counted_and_numbered() -> None:
    found = read(["The cat, the dog.", "", "A cat!"], SkipGram(least=1))
    assert found.words == ("cat", "the", "a", "dog"), "by count, then by the alphabet"
    assert found.counts.tolist() == [2, 2, 1, 1]
    assert found.tokens.tolist() == [1, 0, 1, 3, 2, 0]
    assert found.lines.tolist() == [0, 0, 0, 0, 2, 2]
    rare = read(["The cat, the dog.", "", "A cat!"], SkipGram(least=2))
    assert rare.tokens.tolist() == [1, 0, 1, 0]
    assert words_of("What's 3.5 – Ärger?", lower=False) == ["What's", "3.5", "Ärger"]


def test_windows_hold_what_they_should() -> None:
    """Every pair of the batch, against a plain loop over the text with the drawn distances."""
    random_text = random.Random(0)
    lines = [" ".join(random_text.choices("abcdefgh", k=random_text.randint(0, 9))) for _ in range(20)]
    corpus = read(lines, SkipGram(least=1))
    trainer = skipgram._Trainer(corpus, SkipGram(least=1, window=3))
    state = trainer.random.get_state()
    batch = trainer._blocks(corpus.tokens.long(), corpus.lines)
    trainer.random.set_state(state)
    reach = torch.randint(1, 4, batch.centres.shape, generator=trainer.random).flatten().tolist()
    tokens, line = corpus.tokens.tolist(), corpus.lines.tolist()
    wanted = [
        (tokens[here], tokens[there])
        for here, there in itertools.product(range(len(tokens)), repeat=2)
        if 0 < abs(here - there) <= reach[here] and line[here] == line[there]
    ]
    found = [(int(batch.centres[b, c]), int(batch.context[b, k])) for b, c, k in batch.seen.nonzero().tolist()]
    assert sorted(found) == sorted(wanted)


def test_negatives_are_drawn_by_count_to_the_power() -> None:
    corpus = read(["a " * 160 + "b " * 10], SkipGram(least=1))
    drawn = skipgram._Trainer(corpus, SkipGram(least=1))._draw(2000)
    a, b = 160**0.75, 10**0.75
    assert float((drawn == 0).double().mean()) == pytest.approx(a / (a + b), abs=0.01)


def test_frequent_words_are_left_out_by_the_papers_rule() -> None:
    corpus = read(["a " * 900 + "b " * 90 + "c " * 10], SkipGram(least=1))
    stays = skipgram._Trainer(corpus, SkipGram(least=1, sample=0.01)).stays
    assert_close(stays, torch.tensor([(0.01 / 0.9) ** 0.5, (0.01 / 0.09) ** 0.5, 1.0]))


PEOPLE = {
    "throne": ("king", "queen"),
    "street": ("man", "woman"),
    "school": ("boy", "girl"),
    "stage": ("actor", "actress"),
    "barn": ("uncle", "aunt"),
}
"""A man and a woman for each place."""


def royal_lines(count: int = 4000) -> list[str]:
    """People with two traits, each of which has words of its own: king and queen rule, man and king have a beard."""
    sexes = (["he", "his", "beard", "sir"], ["she", "her", "gown", "madam"])
    chosen = random.Random(5)
    lines = []
    for _ in range(count):
        place, sex = chosen.choice(list(PEOPLE)), chosen.randrange(2)
        lines.append(f"{chosen.choice(sexes[sex])} {PEOPLE[place][sex]} {place}{chosen.randrange(4)}")
    return lines


@pytest.mark.parametrize("seed", [1, 2])
def test_king_minus_man_plus_woman_is_queen(seed: int) -> None:
    found = train(royal_lines(), SMALL.changed({"seed": seed}))
    assert analogy(found, "man", "king", "woman", 1)[0].word == "queen"
    assert analogy(found, "man", "king", "woman", 1, "multiply")[0].word == "queen"
    quadruples = [
        (one[sex], other[sex], one[1 - sex], other[1 - sex])
        for one, other in itertools.permutations(PEOPLE.values(), 2)
        for sex in (0, 1)
    ]
    scored = accuracy(found, quadruples)
    assert scored.asked == 40
    assert scored.share >= 0.95
    assert scored.baseline <= 0.5, "neighbours alone do not answer"


def test_words_of_a_subject_gather() -> None:
    subjects = [["boat", "wave", "harbour", "sail", "tide"], ["oven", "flour", "bread", "salt", "yeast"]]
    chosen = random.Random(2)
    lines = [" ".join(chosen.choices(chosen.choice(subjects), k=6)) for _ in range(1500)]
    found = train(lines, SMALL.changed({"epochs": 10}))
    for subject in subjects:
        for word in subject:
            assert {near.word for near in nearest(found, word, 4)} == {*subject} - {word}
    assert similarity(found, "boat", "wave") > 0.5 + similarity(found, "boat", "flour")


def test_a_seed_gives_the_same_vectors_and_another_others() -> None:
    lines, quick = royal_lines(200), SMALL.changed({"epochs": 2})
    once, again, other = (train(lines, settings) for settings in (quick, quick, quick.changed({"seed": 2})))
    assert torch.equal(once.vectors, again.vectors)
    assert not torch.equal(once.vectors, other.vectors)
    told: list[Progress] = []
    watched = train(iter(lines), quick, told.append)
    assert torch.equal(once.vectors, watched.vectors), "watching changes nothing"
    assert told[-1].words == told[-1].total == 2 * 600
    assert [told[0].epoch, told[-1].epoch] == [1, 2]
    assert told[-1].loss < told[0].loss


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(DataError, match=r"least \(5\) leaves 0 of the 0 different words.*lower least"):
        train([])
    with pytest.raises(DataError, match=r"least \(5\) leaves 1 of the 2 different words"):
        train(["a a a a a b"])
    with pytest.raises(SettingsError, match="window"):
        SkipGram(window=0)


def test_a_text_of_few_words_is_enough() -> None:
    found = train(["a b"], SkipGram(least=1, width=3, sample=1e-9))
    assert found.vectors.isfinite().all(), "though most stretches lose all their words"


def test_vectors_are_kept(tmp_path: Path) -> None:
    found = train(royal_lines(50), SMALL.changed({"epochs": 1}))
    table.save(found, tmp_path / "royal")
    again = table.load(tmp_path / "royal")
    assert again.words == found.words
    assert again.kind == "skip-gram"
    assert torch.equal(again.vectors, found.vectors)
