"""Static word vectors: the decks' numbers, plain loops, what skip-gram learns, files and models."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import regard
from regard.blocks.settings import Attention
from regard.errors import DataError, InputError
from regard.look.study import Study
from regard.look.word_vectors import VECTORS, WORDS, WordVectors
from regard.models.settings import Decoder, Encoder
from regard.text.settings import ByteBpe, WordPiece
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import Loaded

PEOPLE = WordVectors.of(
    {
        "man": [1.0, 0.0, 0.1],
        "woman": [0.0, 1.0, 0.1],
        "king": [1.0, 0.0, 1.0],
        "queen": [0.0, 1.0, 1.0],
        "tree": [-1.0, -1.0, 0],
    }
)
ROYAL = ("man", "king", "woman", "queen")


def test_the_decks_contexts() -> None:
    """0.9 bank + 0.1 river is nearer to river than bank is; the same for money, fruit and brand."""
    for word, other, share, moved in (
        ([6, 6], [0, 5], 0.1, [5.4, 5.9]),
        ([6, 6], [8, 0], 0.2, [6.4, 4.8]),
        ([5, 7], [0, 8], 0.2, [4.0, 7.2]),
        ([5, 7], [6, 0], 0.1, [5.1, 6.3]),
    ):
        a, b = (torch.tensor(vector, dtype=torch.float64) for vector in (word, other))
        given = WordVectors.of({"word": a, "other": b, "moved": (1 - share) * a + share * b})
        assert_close(given["moved"], torch.tensor(moved, dtype=torch.float64))
        assert given.similarity("moved", "other") == pytest.approx(
            sum(x * y for x, y in zip(moved, other, strict=True)) / (math.hypot(*moved) * math.hypot(*other))
        )
        assert given.similarity("moved", "other") > given.similarity("word", "other")
        assert given.nearest("other", 1)[0].word == "moved"


def test_analogies_by_hand() -> None:
    found = PEOPLE.analogy("man", "king", "woman")
    assert [each.word for each in found] == ["queen", "tree"], "the three given words are left out"
    torch.manual_seed(3)
    given = WordVectors(tuple("abcdefgh"), torch.randn(8, 5, dtype=torch.float64))
    cosines = torch.nn.functional.cosine_similarity(given.vectors[:, None], given.vectors, dim=-1).tolist()
    wanted = {given.words[i]: cosines[i][1] - cosines[i][0] + cosines[i][2] for i in range(3, 8)}
    found = given.analogy("a", "b", "c")
    assert dict(found) == pytest.approx(wanted)
    assert [each.word for each in found] == sorted(wanted, key=wanted.__getitem__, reverse=True)


def test_accuracy_and_neighbours() -> None:
    asked = [
        ROYAL,
        ("woman", "queen", "man", "king"),
        ("man", "king", "woman", "tree"),
        ("man", "king", "woman", "duke"),
    ]
    found = PEOPLE.accuracy(asked)
    assert (found.right, found.known, found.unknown) == (2, 3, 1)
    assert found.share == pytest.approx(2 / 3)
    assert found.baseline == found.by_neighbour / 3
    assert PEOPLE.accuracy([]).share == 0.0
    one_hot = WordVectors.one_hot([*ROYAL, "tree"])
    assert one_hot["king"].tolist() == [0, 1, 0, 0, 0]
    assert one_hot.accuracy([ROYAL])[:3] == (0, 0, 1), "a tie is not an answer"
    assert PEOPLE.accuracy([ROYAL]).by_neighbour == 1, "queen is nearest to woman among the others"
    assert PEOPLE.nearest(torch.tensor([2.0, 0.0, 0.2]), 2)[0] == ("man", pytest.approx(1.0))
    assert len(PEOPLE.nearest("man", 100)) == 4
    assert WordVectors.of({"a": [0.0, 0.0], "b": [1.0, 0.0]}).similarity("a", "b") == 0


def test_errors(tmp_path: Path) -> None:
    for wrong, message in (
        (lambda: PEOPLE.analogy("man", "king", "quen"), "'quen'.*did you mean queen"),
        (lambda: PEOPLE.nearest("man", 0), r"count \(0\)"),
        (lambda: PEOPLE.nearest(torch.zeros(2)), r"\[2\], expected \[3\]"),
        (lambda: PEOPLE.accuracy([("man", "king", "woman")]), "expected 4"),
        (lambda: WordVectors(("a",), torch.zeros(2, 2)), r"\[2, 2\], expected \[1, width\]"),
        (lambda: WordVectors(("a", "b", "a"), torch.zeros(3, 2)), "'a' occurs 2 times"),
        (lambda: WordVectors.of({"a": [1.0], "b": [1.0, 2.0]}), "same length"),
        (lambda: WordVectors(("a\nb",), torch.zeros(1, 1)).save(tmp_path), "line break"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


def test_files(tmp_path: Path) -> None:
    given = WordVectors(("ab", "ü", "c\u2028d"), torch.randn(3, 2, dtype=torch.float64))
    given.save(tmp_path)
    again = WordVectors.load(tmp_path)
    assert again.words == given.words
    assert torch.equal(again.vectors, given.vectors)
    (tmp_path / WORDS).write_text("a\n")
    with pytest.raises(DataError, match="1 words, expected 3"):
        WordVectors.load(tmp_path)
    (tmp_path / VECTORS).write_bytes(b"nothing")
    with pytest.raises(DataError, match="holds no word vectors"):
        WordVectors.load(tmp_path)


PLACES = {
    "throne": ("king", "queen"),
    "street": ("man", "woman"),
    "school": ("boy", "girl"),
    "stage": ("actor", "actress"),
    "barn": ("uncle", "aunt"),
}
SMALL: dict[str, Any] = {"width": 16, "window": 3, "min_count": 1, "epochs": 10}


def royal_lines(count: int = 4000) -> list[str]:
    """People with two traits, each with words of its own."""
    traits = (["he", "his", "beard", "sir"], ["she", "her", "gown", "madam"])
    draw = random.Random(5)
    lines = []
    for _ in range(count):
        place, sex = draw.choice(list(PLACES)), draw.randrange(2)
        lines.append(f"{draw.choice(traits[sex])} {PLACES[place][sex]} {place}{draw.randrange(4)}")
    return lines


def test_king_minus_man_plus_woman_is_queen() -> None:
    found = WordVectors.train(royal_lines(), **SMALL, seed=1)
    assert found.analogy("man", "king", "woman", 1)[0].word == "queen"
    analogies = [
        (one[sex], other[sex], one[1 - sex], other[1 - sex])
        for one, other in itertools.permutations(PLACES.values(), 2)
        for sex in (0, 1)
    ]
    scored = found.accuracy(analogies)
    assert scored.known == 40
    assert scored.share >= 0.95
    assert scored.baseline <= 0.5, "neighbours alone do not answer"


def test_seeds_and_counts() -> None:
    lines = royal_lines(200)
    once, again, other = (WordVectors.train(lines, **SMALL | {"epochs": 2}, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(once.vectors, again.vectors)
    assert not torch.equal(once.vectors, other.vectors)
    counted = WordVectors.train(["The cat, the dog.", "", "A cat!"], width=2, min_count=1)
    assert counted.words == ("cat", "the", "a", "dog"), "by count, then by the alphabet"
    for texts in ([], ["a a a a a b"]):
        with pytest.raises(DataError, match=r"min_count \(5\)"):
            WordVectors.train(texts)


def model_of(family: type[Encoder] | type[Decoder], size: int) -> Any:
    texts = ["The bank of the river", "Money in the bank"] * 3
    tokenizer = train_tokenizer(WordPiece(size=size) if family is Encoder else ByteBpe(size=size), texts)
    torch.manual_seed(0)
    settings = family(vocabulary=tokenizer.size, width=16, depth=1, attention=Attention(heads=2))
    return Loaded("tiny", Path("."), regard.build(settings).eval(), TokenizerPair.of(tokenizer), {})


def test_embeddings_of_a_model(studies: dict[str, Study]) -> None:
    model = model_of(Encoder, 300)
    weight = model.network.embedding.tokens.weight.detach()
    tokenizer = model.tokenizers.source
    assert torch.equal(WordVectors.of_model(model)["bank"], weight[tokenizer.id("bank")])
    small = model_of(Encoder, 40)
    found = WordVectors.of_model(small, ["Money", "the", "Money"])
    ids = small.tokenizers.source.ids(["Money"])[0]
    assert found.words == ("Money", "the")
    assert len(ids) > 1
    assert_close(found["Money"], small.network.embedding.tokens.weight.detach()[ids].mean(0))
    bytes_ = model_of(Decoder, 330)
    inside = bytes_.tokenizers.source.encode("Money in the bank", framed=False).ids[-1]
    found = WordVectors.of_model(bytes_, ["bank"])
    assert torch.equal(found["bank"], bytes_.network.embedding.tokens.weight.detach()[inside]), "as inside a sentence"
    for words, message in (([], "words is empty"), ([" "], "unknown"), (["漢"], "unknown")):
        with pytest.raises(InputError, match=message):
            WordVectors.of_model(model, words)
    with pytest.raises(InputError, match="reads no text"):
        WordVectors.of_model(studies["vision"].loaded)
