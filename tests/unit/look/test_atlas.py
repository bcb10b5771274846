"""Words of several sentences on maps: against numpy's eigenvalues, plain cosines and the measures of one word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import write_translator
from torch.testing import assert_close

import regard
from regard.blocks.settings import Attention
from regard.errors import InputError
from regard.look import vectors
from regard.look.atlas import SENTENCES, WORDS, Atlas, atlas
from regard.look.vectors import contextual, find, similarity_by_layer, words_in
from regard.models.settings import Encoder
from regard.text.settings import WordPiece
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import Loaded

TEXTS = ["The bank of the river", "Money in the bank!", "A bank lends money"]


@pytest.fixture(scope="module")
def model() -> Loaded:
    tokenizer = train_tokenizer(WordPiece(size=200), TEXTS * 3)
    torch.manual_seed(0)
    settings = Encoder(vocabulary=tokenizer.size, width=16, depth=2, attention=Attention(heads=2))
    return Loaded("tiny", Path("."), regard.build(settings).eval(), TokenizerPair.of(tokenizer), {})


@pytest.fixture(scope="module")
def found(model: Loaded) -> Atlas:
    return atlas(model, TEXTS)


def test_words_and_charts(found: Atlas) -> None:
    words = [place.word for place in found.vectors.places]
    assert words == ["The", "bank", "of", "the", "river", "Money", "in", "the", "bank", "A", "bank", "lends", "money"]
    assert [chart.word for chart in found.charts] == [None, "Money", "bank", "The"], "long words first, then frequent"
    assert found.chart("BANK").places == (1, 8, 10)
    assert found.chart().places == tuple(range(13))


def test_cosines_are_those_of_single_words(model: Loaded, found: Atlas) -> None:
    one, two = contextual(model, [find(TEXTS[0], "river")]), contextual(model, [find(TEXTS[2], "lends")])
    for layer in range(3):
        wanted = torch.cosine_similarity(one.layers[layer, 0].double(), two.layers[layer, 0].double(), dim=0)
        assert float(found.cosines[layer, 4, 11]) == pytest.approx(float(wanted), abs=1e-5)
    static = torch.cosine_similarity(one.static[0].double(), two.static[0].double(), dim=0)
    assert float(found.static[4, 11]) == pytest.approx(float(static), abs=1e-5)


@pytest.mark.parametrize("word", [None, "bank"])
def test_a_map_shows_the_largest_eigenvalues(found: Atlas, word: str | None) -> None:
    chart = found.chart(word)
    for layer, drawn in enumerate(chart.maps):
        chosen = found.vectors.layers[layer, list(chart.places)].double().numpy()
        values = np.linalg.eigvalsh(np.cov(chosen.T))[::-1]
        assert np.allclose(drawn.share.numpy(), values[:2] / values.sum(), atol=1e-4)
        assert np.allclose(np.var(drawn.points.numpy(), axis=0, ddof=1), values[:2], rtol=1e-3, atol=1e-6)


def test_a_words_pairs_are_those_of_its_own_measure(model: Loaded, found: Atlas) -> None:
    ours = found.similarity("bank")
    theirs = similarity_by_layer(model, [find(text, "bank") for text in TEXTS], TEXTS)
    assert ours.places == theirs.places
    assert ours.pairs == theirs.pairs
    assert_close(ours.layers, theirs.layers)
    assert_close(ours.static, theirs.static)
    assert_close(ours.chance.layers, theirs.chance.layers)
    assert ours.chance.pairs == theirs.chance.pairs
    assert ours.chance.static == pytest.approx(theirs.chance.static)


@pytest.mark.parametrize("write", [write_translator, write_decoder, write_encoder])
def test_families(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    loaded = regard.load(write(tmp_path / "model"), "cpu")
    drawn = atlas(loaded, ["the dog and the cat", "", " und eine Katze "])
    assert drawn.texts == ("the dog and the cat", "und eine Katze")
    depth = loaded.settings.depth
    assert len(drawn.charts[0].maps) == drawn.cosines.shape[0] == depth + 1
    assert drawn.charts[1].word == "the"


def test_signs_and_what_the_tokenizer_drops_are_left_out(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [place.word for place in words_in(model, ["bank, _x_ \u202e river!"])] == ["bank", "river"]
    whole = vectors._Reader.tokens

    def some(self: vectors._Reader, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        kept = [(number, span) for number, span in zip(*whole(self, text), strict=True) if text[slice(*span)] != "of"]
        return [number for number, _ in kept], [span for _, span in kept]

    monkeypatch.setattr(vectors._Reader, "tokens", some)
    assert [place.word for place in words_in(model, TEXTS[:1])] == ["The", "bank", "the", "river"]
    assert len(atlas(model, TEXTS).vectors.places) == 12


def test_few_words_have_no_baseline(model: Loaded) -> None:
    few = atlas(model, ["bank the bank"])
    assert few.chart("bank").chance is None
    with pytest.raises(InputError, match="nothing to compare with"):
        few.similarity("bank")


def test_what_is_refused(model: Loaded, found: Atlas, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"texts are 0 sentences and must be 1 to {SENTENCES}"):
        atlas(model, ["", "  "])
    with pytest.raises(InputError, match=f"texts are {SENTENCES + 1} sentences"):
        atlas(model, [f"bank {number}" for number in range(SENTENCES + 1)])
    with pytest.raises(InputError, match=rf"have {WORDS + 1} words and must have 2 to {WORDS}"):
        atlas(model, ["bank " * (WORDS + 1)])
    with pytest.raises(InputError, match="have 1 words"):
        atlas(model, ["bank"])
    with pytest.raises(InputError, match="at most 4 of a text are looked at; shorten it"):
        atlas(model, TEXTS, tokens=4)
    with pytest.raises(InputError, match=r"word \(river\) does not stand more than once in these 3 sentences"):
        found.chart("river")
    with pytest.raises(InputError, match="reads no texts"):
        atlas(regard.load(write_vision(tmp_path / "eyes"), "cpu"), TEXTS)
