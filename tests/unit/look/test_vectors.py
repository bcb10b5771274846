"""Vectors of words in their sentences: against a plain pass of the model, PCA against distances, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tiny_translator import write_translator
from torch.testing import assert_close

import regard
from regard.blocks.settings import Attention
from regard.errors import InputError
from regard.look.table import embedding_table
from regard.look.vectors import (
    Place,
    anisotropy,
    contextual,
    cosines,
    find,
    map_of,
    maps,
    nth_word,
    similarity_by_layer,
)
from regard.models.settings import Decoder, Encoder, Vision
from regard.text.settings import ByteBpe, WordPiece
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import Loaded
from regard.use.translation import TranslateOptions
from regard.use.translator import Translator

RIVER, MONEY = "The bank of the river", "Money in the bank"
APPLES = ("My favorite fruit is apple", "My favorite brand is apple")
TEXTS = [RIVER, MONEY, *APPLES]
BANKS = [find(RIVER, "bank"), find(MONEY, "bank")]


def loaded(family: type[Encoder] | type[Decoder] = Encoder, size: int = 300) -> Loaded:
    tokenizer = train_tokenizer(WordPiece(size=size) if family is Encoder else ByteBpe(size=size), TEXTS * 3)
    torch.manual_seed(0)
    settings = family(vocabulary=tokenizer.size, width=16, depth=2, attention=Attention(heads=2))
    return Loaded("tiny", Path("."), regard.build(settings).eval(), TokenizerPair.of(tokenizer), {})


@pytest.fixture(scope="module")
def encoder() -> Loaded:
    return loaded()


# --------------------------------------------------------------------------------------------------------------- places


def test_words_are_found() -> None:
    assert find(RIVER, "bank") == (RIVER, (4, 8))
    assert find(RIVER, "THE", 1) == (RIVER, (12, 15))
    assert nth_word(RIVER, 4).word == "river"
    assert nth_word("Oh, no.", 1).word == ","


def test_words_that_are_not_there() -> None:
    with pytest.raises(InputError, match=r"word \(boat\), number 0, is not in 'The bank of the river'.* 0 times"):
        find(RIVER, "boat")
    with pytest.raises(InputError, match=r"word \(the\), number 2.* 2 times"):
        find(RIVER, "the", 2)
    with pytest.raises(InputError, match=r"word 5 is not in .*, which has 5, from 0"):
        nth_word(RIVER, 5)


# -------------------------------------------------------------------------------------------------------------- vectors


def test_an_encoders_vectors_are_those_of_a_plain_pass(encoder: Loaded) -> None:
    found = contextual(encoder, BANKS)
    assert found.layers.shape == (3, 2, 16)
    assert found.tokens == (("bank",), ("bank",))
    tokenizer, network = encoder.tokenizers.source, encoder.network  # type: ignore[union-attr]
    for number, place in enumerate(BANKS):
        ids = tokenizer.encode(place.text).ids
        where = ids.index(tokenizer.id("bank"))
        with torch.no_grad():
            out = network(torch.tensor([ids]))[0, where]
        norm = network.encoder.norm
        last = found.layers[-1, number]
        assert_close(last if norm is None else norm(last).detach(), out, rtol=1e-5, atol=1e-6)
        assert_close(
            found.static[number], network.embedding.tokens.weight[ids[where]].detach() * network.embedding.scale
        )


@pytest.mark.parametrize("family", [Encoder, Decoder])
def test_a_word_of_several_tokens_is_their_mean(family: type[Encoder] | type[Decoder]) -> None:
    model = loaded(family, 280 if family is Decoder else 60)
    place = find(MONEY, "Money")
    found = contextual(model, [place])
    ids = model.tokenizers.source.encode(MONEY)  # type: ignore[union-attr]
    inside = [number for number, (first, last) in enumerate(ids.offsets) if first < 5 and last > 0]
    assert len(inside) > 1, "the case is about several"
    assert found.tokens[0] == tuple(ids.tokens[number] for number in inside)
    stack = "encoder" if family is Encoder else "decoder"
    with torch.no_grad(), regard.record(model, f"{stack}.1.residual") as seen:
        model.network(torch.tensor([ids.ids]))
    assert_close(found.layers[2, 0], seen.calls(f"{stack}.1.residual")[0][0, inside].mean(0))


def test_a_causal_model_does_not_look_ahead() -> None:
    model = loaded(Decoder)
    first, second = (find(text, "favorite") for text in APPLES)
    found = contextual(model, [first, second, find(APPLES[0], "apple"), find(APPLES[1], "apple")])
    assert_close(found.layers[:, 0], found.layers[:, 1])
    assert not torch.allclose(found.layers[-1, 2], found.layers[-1, 3])
    assert_close(found.static[2], found.static[3])


def test_a_translators_encoder(tmp_path: Path) -> None:
    model = regard.load(write_translator(tmp_path / "tiny"), device="cpu")
    assert isinstance(model, Translator)
    text = "and a cat too"
    found = contextual(model, [find(text, "cat")], to="en")
    ids = model.scribe(TranslateOptions(to="en")).read([text])[0]
    with torch.no_grad(), regard.record(model, "encoder.0.residual") as seen:
        model.network.encode(torch.tensor([ids]))
    tokens = [model.tokenizers.source.token(number) for number in ids]
    inside = [number for number, token in enumerate(tokens) if token in found.tokens[0]]
    assert_close(found.layers[1, 0], seen.calls("encoder.0.residual")[0][0, inside].mean(0))
    other = contextual(model, [find(text, "cat")], to="de")
    assert not torch.allclose(found.layers[1], other.layers[1]), "another tag goes before it"


def test_a_model_in_training_is_not_disturbed(encoder: Loaded) -> None:
    encoder.network.train()
    first, second = contextual(encoder, BANKS), contextual(encoder, BANKS)
    assert encoder.network.training
    encoder.network.eval()
    assert torch.equal(first.layers, second.layers), "dropout would make them differ"


# ----------------------------------------------------------------------------------------------------------- similarity


def test_similarity_beside_its_baselines(encoder: Loaded) -> None:
    places = [*BANKS, find(APPLES[0], "apple")]
    found = similarity_by_layer(encoder, places, TEXTS)
    vectors = contextual(encoder, places)
    assert found.pairs == ((0, 1), (0, 2), (1, 2))
    for layer in range(3):
        for column, (one, two) in enumerate(found.pairs):
            a, b = vectors.layers[layer, one].double(), vectors.layers[layer, two].double()
            wanted = float(a @ b / (a.norm() * b.norm()))
            assert float(found.layers[layer, column]) == pytest.approx(wanted, abs=1e-5)
    assert float(found.static[0]) == pytest.approx(1, abs=1e-6), "a static vector is the same in every sentence"
    assert float(found.layers[-1, 0]) < 1
    assert_close(found.adjusted, found.layers - found.chance.layers[:, None])


def test_the_baseline_by_hand(encoder: Loaded) -> None:
    text = "My favorite fruit is my apple"
    words = ["My", "favorite", "fruit", "is", "my"]
    vectors = contextual(encoder, [nth_word(text, number) for number in range(5)]).layers.double()
    for layer, chance in enumerate(anisotropy(encoder, [text], without=["Apple"]).layers):
        between = [
            float(torch.cosine_similarity(vectors[layer, one], vectors[layer, two], dim=0))
            for one in range(5)
            for two in range(one)
            if words[one].lower() != words[two].lower()
        ]
        assert float(chance) == pytest.approx(sum(between) / 9, abs=1e-5)
        assert len(between) == 9


def test_what_cannot_be_compared(encoder: Loaded) -> None:
    with pytest.raises(InputError, match="1 place cannot be compared"):
        similarity_by_layer(encoder, BANKS[:1])
    with pytest.raises(InputError, match="fewer than two different words"):
        similarity_by_layer(encoder, BANKS, ["bank apple"])
    with pytest.raises(InputError, match=r"places \(\) must name"):
        contextual(encoder, [])
    for span in ((3, 3), (4, 99), (-3, 2)):
        with pytest.raises(InputError, match="holds no token"):
            contextual(encoder, [Place(RIVER, span)])
    with pytest.raises(InputError, match=r"to \(de\) is for translators"):
        contextual(encoder, BANKS, to="de")
    images = regard.build(Vision(width=16, depth=1, attention=Attention(heads=2), image=(8, 8), patch=4))
    with pytest.raises(InputError, match=r"model \(eyes\), of kind vision, reads no texts"):
        contextual(Loaded("eyes", Path("."), images, None, {}), BANKS)


# ----------------------------------------------------------------------------------------------------------------- maps

POINTS = st.lists(st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4), min_size=1, max_size=7)


@hypothesis_settings(max_examples=40, deadline=None)
@given(POINTS)
def test_a_map_never_stretches(points: list[list[float]]) -> None:
    vectors = torch.tensor(points, dtype=torch.float64)
    found = map_of(vectors)
    assert found.points.shape == (len(points), 2)
    assert (torch.cdist(found.points, found.points) <= torch.cdist(vectors, vectors) + 1e-6).all()
    assert 0 <= float(found.share.sum()) <= 1 + 1e-9


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=2), min_size=3, max_size=7))
def test_a_map_of_a_plane_keeps_all_distances(points: list[list[float]]) -> None:
    """However the plane lies in space."""
    plane = torch.tensor(points, dtype=torch.float64)
    space = plane @ torch.tensor([[0.6, 0.0, 0.8], [0.0, 1.0, 0.0]], dtype=torch.float64)
    found = map_of(space)
    assert_close(torch.cdist(found.points, found.points), torch.cdist(plane, plane), rtol=1e-6, atol=1e-6)


def test_a_map_does_not_turn_over() -> None:
    vectors = torch.tensor([[0.0, 0, 0], [5, 0, 0], [9, 2, 0]], dtype=torch.float64)
    found = map_of(vectors)
    assert float(found.points[2, 0]) > float(found.points[0, 0]), "the largest entry of the axis is positive"
    assert torch.equal(map_of(vectors).points, found.points)
    assert float(found.share[0]) > float(found.share[1]) > 0


def test_a_map_for_each_layer(encoder: Loaded) -> None:
    found = contextual(encoder, [*BANKS, find(APPLES[0], "apple"), find(APPLES[1], "apple")])
    assert len(maps(found)) == 3
    assert float(cosines(found.layers).abs().max()) <= 1


# ---------------------------------------------------------------------------------------------------- embedding tables


def test_the_embedding_of_a_model_as_a_table(encoder: Loaded) -> None:
    weight = encoder.network.embedding.tokens.weight.detach()
    every = embedding_table(encoder)
    assert every.kind == "embedding"
    assert torch.equal(every["bank"], weight[encoder.tokenizers.source.id("bank")])  # type: ignore[union-attr, index]


def test_words_of_several_pieces_are_averaged_and_told() -> None:
    model = loaded(size=60)
    found = embedding_table(model, ["Money", "the", "Money"])
    assert found.words == ("Money", "the")
    ids = model.tokenizers.source.ids(["Money"])[0]  # type: ignore[union-attr]
    assert dict(found.pieces) == {"Money": len(ids)}
    assert len(ids) > 1
    assert_close(found["Money"], model.network.embedding.tokens.weight.detach()[ids].mean(0))


def test_words_are_taken_as_they_stand_inside_a_sentence() -> None:
    model = loaded(Decoder, 330)
    tokenizer = model.tokenizers.source  # type: ignore[union-attr]
    inside = tokenizer.encode(MONEY, framed=False).ids[-1]
    found = embedding_table(model, ["bank"])
    assert not found.pieces
    assert torch.equal(found["bank"], model.network.embedding.tokens.weight.detach()[inside])


def test_tables_of_models_without_words(encoder: Loaded) -> None:
    with pytest.raises(InputError, match="has no tokenizer"):
        embedding_table(Loaded("bare", Path("."), encoder.network, None, {}))
    with pytest.raises(InputError, match=r"words \(\) must name"):
        embedding_table(encoder, [])
    for word in (" ", "漢"):
        with pytest.raises(InputError, match=f"word .'{word}'. is unknown to this tokenizer"):
            embedding_table(encoder, [word])
