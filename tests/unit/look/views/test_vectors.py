"""Vectors view: against recorded states, numpy's eigenvalues and plain cosines."""

from __future__ import annotations

from pathlib import Path

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
from regard.look.views.vectors import AnalogyRequest, Atlas, analogy, atlas, plane_map
from regard.models.settings import Decoder, Encoder
from regard.text.settings import ByteBpe, WordPiece
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import Loaded
from regard.use.translator import Translator

TEXTS = ["The bank of the river", "Money in the bank!", "A bank lends money"]


def study_of(family: type[Encoder] | type[Decoder] = Encoder, size: int = 300, **limits: int) -> Study:
    tokenizer = train_tokenizer(WordPiece(size=size) if family is Encoder else ByteBpe(size=size), TEXTS * 3)
    torch.manual_seed(0)
    settings = family(vocabulary=tokenizer.size, width=16, depth=2, attention=Attention(heads=2))
    loaded = Loaded("tiny", Path("."), regard.build(settings), TokenizerPair.of(tokenizer), {})
    return Study(loaded, **limits)


@pytest.fixture(scope="module")
def study() -> Study:
    return study_of()


@pytest.fixture(scope="module")
def found(study: Study) -> Atlas:
    return atlas(study, TEXTS)


def test_a_word_of_several_tokens_is_their_mean() -> None:
    for family, size in ((Encoder, 40), (Decoder, 270)):
        study = study_of(family, size)
        found = atlas(study, TEXTS[1:2])
        assert study.loaded.tokenizers is not None
        ids = study.loaded.tokenizers.source.encode(TEXTS[1])
        inside = [i for i, (first, last) in enumerate(ids.offsets) if first < 5 and last > 0]
        assert len(inside) > 1, "the case needs several tokens"
        assert found.words[0].tokens == tuple(ids.tokens[i] for i in inside)
        stack = "encoder" if family is Encoder else "decoder"
        with torch.no_grad(), regard.record(study.network, f"{stack}.1.residual") as seen:
            study.network(torch.tensor([ids.ids]))
        assert_close(found.vectors[2, 0], seen.calls(f"{stack}.1.residual")[0][0, inside].mean(0))


def test_a_decoder_does_not_look_ahead() -> None:
    found = atlas(study_of(Decoder), ["My favorite fruit is apple", "My favorite brand is apple"])
    same, other = (list(found.chart(word).places) for word in ("favorite", "apple"))
    assert_close(found.vectors[:, same[0]], found.vectors[:, same[1]])
    assert not torch.allclose(found.vectors[-1, other[0]], found.vectors[-1, other[1]])
    assert float(found.static[other[0], other[1]]) == pytest.approx(1, abs=1e-6)


def test_the_encoder_of_a_translator(studies: dict[str, Study]) -> None:
    study = studies["translator"]
    model = study.loaded
    assert isinstance(model, Translator)
    found, other = (atlas(study, ["and a cat too"], to) for to in ("en", "de"))
    ids = model.inputs(["and a cat too"], "en")[0]
    with torch.no_grad(), regard.record(model, "encoder.0.residual") as seen:
        model.network.encode(torch.tensor([ids]))
    tokens = [model.tokenizers.source.token(token) for token in ids]
    inside = [i for i, token in enumerate(tokens) if token in found.words[2].tokens]
    assert_close(found.vectors[1, 2], seen.calls("encoder.0.residual")[0][0, inside].mean(0))
    assert not torch.allclose(found.vectors[1], other.vectors[1]), "another language tag"


def test_words_and_charts(study: Study, found: Atlas, studies: dict[str, Study]) -> None:
    words = [place.word for place in found.words]
    assert words == ["The", "bank", "of", "the", "river", "Money", "in", "the", "bank", "A", "bank", "lends", "money"]
    assert [chart.word for chart in found.charts] == [None, "Money", "bank", "The"], "long words first, then frequent"
    assert found.chart("BANK").places == (1, 8, 10)
    assert found.chart().places == tuple(range(13))
    assert [place.word for place in atlas(study, ["bank, _x_ \u202e river!"]).words] == ["bank", "river"]
    for family in ("translator", "decoder", "encoder"):
        drawn = atlas(studies[family], ["the dog and the cat", "", " und eine Katze "])
        assert drawn.texts == ("the dog and the cat", "und eine Katze")
        assert len(drawn.charts[0].points) == len(drawn.cosines) == studies[family].loaded.settings.depth + 1
        assert drawn.charts[1].word == "the"


def test_similarity_and_its_baseline_by_hand(study: Study, found: Atlas) -> None:
    chart = found.chart("bank")
    assert chart.chance is not None
    words = [place.word.lower() for place in found.words]
    for layer, vectors in enumerate(found.vectors.double()):
        pairs = {
            (a, b): float(torch.cosine_similarity(vectors[a], vectors[b], dim=0)) for a in range(13) for b in range(a)
        }
        for (one, two), cosine in pairs.items():
            assert float(found.cosines[layer, one, two]) == pytest.approx(cosine, abs=1e-5)
        different = [
            cosine
            for (one, two), cosine in pairs.items()
            if words[one] != words[two] and "bank" not in (words[one], words[two])
        ]
        assert float(chart.chance.layers[layer]) == pytest.approx(np.mean(different), abs=1e-5)
        assert chart.chance.pairs == len(different)
    assert float(found.static[1, 8]) == pytest.approx(1, abs=1e-6), "a static vector is equal in every text"
    assert atlas(study, ["bank the bank"]).chart("bank").chance is None


def test_maps_show_the_largest_eigenvalues(found: Atlas) -> None:
    points, share = plane_map(torch.tensor([[0.0, 0, 0], [5, 0, 0], [9, 2, 0]], dtype=torch.float64))
    assert float(points[2, 0]) > float(points[0, 0]), "the largest entry of the axis is positive"
    for word in (None, "bank"):
        chart = found.chart(word)
        for layer, (points, share) in enumerate(zip(chart.points, chart.share, strict=True)):
            chosen = found.vectors[layer, list(chart.places)].double().numpy()
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


def test_errors(study: Study, found: Atlas, studies: dict[str, Study]) -> None:
    for wrong, message in (
        (lambda: atlas(study, ["bank"]), "1 words"),
        (lambda: atlas(study_of(tokens=4), TEXTS), "limit is 4"),
        (lambda: found.chart("river"), "'river' occurs at most once"),
        (lambda: atlas(studies["vision"], TEXTS), "reads no text"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


def test_arrows_go_from_static_to_contextual_vectors(found: Atlas) -> None:
    chart = found.chart("bank")
    count = len(chart.places)
    for layer, points in enumerate(chart.arrows):
        contextual = found.vectors[layer, list(chart.places)]
        assert points.shape == (2 * count, 2)
        assert_close(points[:count], points[:1].expand(count, 2), atol=1e-5, rtol=0)
        # All differences lie in a space of `count` dimensions; numpy's eigenvalues give the share of the first two.
        units = (contextual / contextual.norm(dim=1, keepdim=True)).numpy()
        apart = np.linalg.norm(units[:, None] - units[None], axis=-1)
        shown = np.linalg.norm(points[count:, None].numpy() - points[None, count:].numpy(), axis=-1)
        assert (shown <= apart + 1e-5).all(), "a plane only shortens distances"


def test_analogies_are_sums_of_unit_vectors(study: Study) -> None:
    found = analogy(study, AnalogyRequest(a="bank", b="river", c="Money"))
    assert study.loaded.tokenizers is not None
    tokenizer, table = study.loaded.tokenizers.source, study.network.embedding.tokens.weight.detach().double().numpy()

    def unit(word: str) -> np.ndarray:
        vector = table[min(tokenizer.ids([f" {word}", word]), key=len)].mean(0)
        return vector / np.linalg.norm(vector)

    point = unit("river") - unit("bank") + unit("Money")
    cosines = table @ point / np.linalg.norm(table, axis=1) / np.linalg.norm(point)
    assert found["analogy"]
    for word, cosine in found["analogy"]:
        assert word.casefold() not in ("bank", "river", "money")
        assert np.abs(cosines - cosine).min() < 1e-5
    assert [score for _, score in found["analogy"]] == sorted((score for _, score in found["analogy"]), reverse=True)
    with pytest.raises(InputError, match="unknown"):
        analogy(study, AnalogyRequest(a="bank", b="☃", c="river"))
