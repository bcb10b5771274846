"""Vectors view: against a plain forward pass, numpy's eigenvalues and plain cosines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.testing import assert_close

import regard
from regard.blocks.settings import Attention
from regard.errors import InputError
from regard.look.study import Study
from regard.look.views import vectors
from regard.look.views.vectors import Atlas, Occurrence, atlas, contextual, find_word, plane_map
from regard.models.settings import Decoder, Encoder
from regard.text.settings import ByteBpe, WordPiece
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import Loaded
from regard.use.translator import Translator

TEXTS = ["The bank of the river", "Money in the bank!", "A bank lends money"]
BANKS = [find_word(text, "bank") for text in TEXTS]


def loaded(family: type[Encoder] | type[Decoder] = Encoder, size: int = 300) -> Any:
    tokenizer = train_tokenizer(WordPiece(size=size) if family is Encoder else ByteBpe(size=size), TEXTS * 3)
    torch.manual_seed(0)
    settings = family(vocabulary=tokenizer.size, width=16, depth=2, attention=Attention(heads=2))
    return Loaded("tiny", Path("."), regard.build(settings).eval(), TokenizerPair.of(tokenizer), {})


@pytest.fixture(scope="module")
def model() -> Any:
    return loaded()


@pytest.fixture(scope="module")
def found(model: Any) -> Atlas:
    return atlas(model, TEXTS)


def test_words_are_found() -> None:
    assert BANKS[0] == (TEXTS[0], (4, 8))
    assert find_word(TEXTS[0], "THE", 1) == (TEXTS[0], (12, 15))
    for word, number in (("boat", 0), ("the", 2)):
        with pytest.raises(InputError, match=f"{word!r} occurs"):
            find_word(TEXTS[0], word, number)


def test_vectors_are_those_of_a_plain_pass(model: Any) -> None:
    found = contextual(model, BANKS)
    assert found.layers.shape == (3, 3, 16)
    assert found.tokens == (("bank",),) * 3
    tokenizer, network = model.tokenizers.source, model.network
    for i, place in enumerate(BANKS):
        ids = tokenizer.encode(place.text).ids
        where = ids.index(tokenizer.id("bank"))
        with torch.no_grad():
            out = network(torch.tensor([ids]))[0, where]
        norm, last = network.encoder.norm, found.layers[-1, i]
        assert_close(last if norm is None else norm(last).detach(), out, rtol=1e-5, atol=1e-6)
        assert_close(found.static[i], network.embedding.tokens.weight[ids[where]].detach() * network.embedding.scale)
    network.train()
    assert torch.equal(contextual(model, BANKS).layers, found.layers), "no dropout in training mode"
    assert network.training
    network.eval()


def test_a_word_of_several_tokens_is_their_mean() -> None:
    for family, size in ((Encoder, 40), (Decoder, 270)):
        model = loaded(family, size)
        found = contextual(model, [find_word(TEXTS[1], "Money")])
        ids = model.tokenizers.source.encode(TEXTS[1])
        inside = [i for i, (first, last) in enumerate(ids.offsets) if first < 5 and last > 0]
        assert len(inside) > 1, "the case needs several tokens"
        assert found.tokens[0] == tuple(ids.tokens[i] for i in inside)
        stack = "encoder" if family is Encoder else "decoder"
        with torch.no_grad(), regard.record(model, f"{stack}.1.residual") as seen:
            model.network(torch.tensor([ids.ids]))
        assert_close(found.layers[2, 0], seen.calls(f"{stack}.1.residual")[0][0, inside].mean(0))


def test_a_decoder_does_not_look_ahead() -> None:
    texts = ["My favorite fruit is apple", "My favorite brand is apple"]
    places = [find_word(text, word) for word in ("favorite", "apple") for text in texts]
    found = contextual(loaded(Decoder), places)
    assert_close(found.layers[:, 0], found.layers[:, 1])
    assert not torch.allclose(found.layers[-1, 2], found.layers[-1, 3])
    assert_close(found.static[2], found.static[3])


def test_the_encoder_of_a_translator(studies: dict[str, Study]) -> None:
    model = studies["translator"].loaded
    assert isinstance(model, Translator)
    text = "and a cat too"
    found = contextual(model, [find_word(text, "cat")], to="en")
    ids = model.inputs([text], "en")[0]
    with torch.no_grad(), regard.record(model, "encoder.0.residual") as seen:
        model.network.encode(torch.tensor([ids]))
    tokens = [model.tokenizers.source.token(token) for token in ids]
    inside = [i for i, token in enumerate(tokens) if token in found.tokens[0]]
    assert_close(found.layers[1, 0], seen.calls("encoder.0.residual")[0][0, inside].mean(0))
    other = contextual(model, [find_word(text, "cat")], to="de")
    assert not torch.allclose(found.layers[1], other.layers[1]), "another language tag"


def test_words_and_charts(found: Atlas, studies: dict[str, Study]) -> None:
    words = [place.word for place in found.vectors.places]
    assert words == ["The", "bank", "of", "the", "river", "Money", "in", "the", "bank", "A", "bank", "lends", "money"]
    assert [chart.word for chart in found.charts] == [None, "Money", "bank", "The"], "long words first, then frequent"
    assert found.chart("BANK").places == (1, 8, 10)
    assert found.chart().places == tuple(range(13))
    for family in ("translator", "decoder", "encoder"):
        drawn = atlas(studies[family].loaded, ["the dog and the cat", "", " und eine Katze "])
        assert drawn.texts == ("the dog and the cat", "und eine Katze")
        assert len(drawn.charts[0].points) == len(drawn.cosines) == studies[family].loaded.settings.depth + 1
        assert drawn.charts[1].word == "the"


def test_similarity_and_its_baseline_by_hand(model: Any, found: Atlas) -> None:
    each = contextual(model, BANKS)
    chart = found.chart("bank")
    assert chart.chance is not None
    words = [place.word.lower() for place in found.vectors.places]
    for layer in range(3):
        for one, two in ((0, 1), (0, 2), (1, 2)):
            a, b = each.layers[layer, one].double(), each.layers[layer, two].double()
            cosine = float(found.cosines[layer, chart.places[one], chart.places[two]])
            assert cosine == pytest.approx(float(a @ b / (a.norm() * b.norm())), abs=1e-5)
        different = [
            float(torch.cosine_similarity(*found.vectors.layers[layer, [one, two]].double(), dim=0))
            for one in range(13)
            for two in range(one)
            if words[one] != words[two] and "bank" not in (words[one], words[two])
        ]
        assert float(chart.chance.layers[layer]) == pytest.approx(np.mean(different), abs=1e-5)
        assert chart.chance.pairs == len(different)
    assert float(found.static[1, 8]) == pytest.approx(1, abs=1e-6), "a static vector is equal in every text"
    assert atlas(model, ["bank the bank"]).chart("bank").chance is None


def test_maps_show_the_largest_eigenvalues(found: Atlas) -> None:
    points, share = plane_map(torch.tensor([[0.0, 0, 0], [5, 0, 0], [9, 2, 0]], dtype=torch.float64))
    assert float(points[2, 0]) > float(points[0, 0]), "the largest entry of the axis is positive"
    for word in (None, "bank"):
        chart = found.chart(word)
        for layer, (points, share) in enumerate(zip(chart.points, chart.share, strict=True)):
            chosen = found.vectors.layers[layer, list(chart.places)].double().numpy()
            values = np.linalg.eigvalsh(np.cov(chosen.T))[::-1]
            assert np.allclose(share.numpy(), values[:2] / values.sum(), atol=1e-4)
            assert np.allclose(np.var(points.numpy(), axis=0, ddof=1), values[:2], rtol=1e-3, atol=1e-6)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4), min_size=1, max_size=7))
def test_a_map_never_stretches(points: list[list[float]]) -> None:
    space = torch.tensor(points, dtype=torch.float64)
    found, share = plane_map(space)
    assert found.shape == (len(points), 2)
    assert (torch.cdist(found, found) <= torch.cdist(space, space) + 1e-6).all()
    assert 0 <= float(share.sum()) <= 1 + 1e-9
    flat = space.clone()
    flat[:, 2:] = 0
    drawn, _ = plane_map(flat)
    assert_close(torch.cdist(drawn, drawn), torch.cdist(flat, flat), rtol=1e-6, atol=1e-6)


def test_punctuation_and_dropped_words_are_left_out(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [place.word for place in atlas(model, ["bank, _x_ \u202e river!"]).vectors.places]
    assert words == ["bank", "river"]
    whole = vectors._tokenized

    def some(model: Any, text: str, to: str | None) -> Any:
        kept = [(i, span) for i, span in zip(*whole(model, text, to), strict=True) if text[slice(*span)] != "of"]
        return [i for i, _ in kept], [span for _, span in kept]

    monkeypatch.setattr(vectors, "_tokenized", some)
    assert [place.word for place in atlas(model, TEXTS[:1]).vectors.places] == ["The", "bank", "the", "river"]


def test_errors(model: Any, found: Atlas, studies: dict[str, Study]) -> None:
    for wrong, message in (
        (lambda: atlas(model, ["bank"]), "1 words"),
        (lambda: atlas(model, TEXTS, tokens=4), "limit is 4"),
        (lambda: found.chart("river"), "'river' occurs at most once"),
        (lambda: atlas(studies["vision"].loaded, TEXTS), "reads no text"),
        (lambda: contextual(model, []), "places is empty"),
        (lambda: contextual(model, BANKS, to="de"), r"to \(de\)"),
        *((lambda span=span: contextual(model, [Occurrence(TEXTS[0], span)]), "span") for span in ((3, 3), (4, 99))),
    ):
        with pytest.raises(InputError, match=message):
            wrong()
