"""Encodings as matrices: the decks' numbers, float64 by hand, and what a model really adds."""

from __future__ import annotations

import math

import pytest
import torch
from family_cases import IMAGE_POSITIONS, TEXT_POSITIONS, decoder, encoder, encoder_decoder, vision
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import regard
from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.look.positions import best_rotation, distance_scores, encodings, shift, shift_2d
from regard.models.settings import Decoder, Encoder

DECK = [
    [0.000, 0.841, 0.909, 0.141, -0.757],
    [1.000, 0.540, -0.416, -0.990, -0.654],
    [0.000, 0.025, 0.050, 0.075, 0.100],
    [1.000, 1.000, 0.999, 0.997, 0.995],
    [0.000, 0.001, 0.001, 0.002, 0.003],
]
"""Dimension by dimension, positions 0 to 4, of width 5."""


def test_the_table_of_the_deck() -> None:
    model = Encoder(vocabulary=5, width=5, depth=1, attention=blocks.Attention(heads=1), position=blocks.Sinusoidal())
    found = encodings(model, 5)
    assert found.kind == "sinusoidal"
    assert_close(found.matrix.mT, torch.tensor(DECK, dtype=torch.float64), rtol=0, atol=0.5e-3)


def test_dot_products_of_sinusoids_depend_on_the_distance_alone() -> None:
    found = encodings(encoder(position=blocks.Sinusoidal()), 12)
    wanted = [sum(math.cos(apart / 10_000 ** (2 * j / 16)) for j in range(8)) for apart in range(12)]
    for first in range(12):
        for second in range(12):
            assert float(found.dots[first, second]) == pytest.approx(wanted[abs(first - second)], abs=1e-5)
    assert_close(found.cosines, found.dots / 8, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("family", [encoder, decoder, encoder_decoder])
def test_they_are_what_the_model_adds(family, kind: str) -> None:  # type: ignore[no-untyped-def]
    model = regard.build(family(position=TEXT_POSITIONS[kind])).eval()
    name = "source" if family is encoder_decoder else "embedding"
    tokens = torch.zeros(1, 9, dtype=torch.long)
    with regard.record(model, f"{name}.positions") as seen:
        model(tokens, tokens) if family is encoder_decoder else model(tokens)
    found = seen[f"{name}.positions"]
    assert isinstance(found, Tensor)
    assert_close(encodings(model, 9).matrix.float(), found.reshape(9, 16))


def test_the_decoders_own_are_found() -> None:
    model = regard.build(encoder_decoder(position=blocks.Learned(length=8)))
    assert torch.equal(encodings(model, 8, "decoder").matrix, model.target.position.weight.detach().double())
    assert not torch.equal(encodings(model, 8).matrix, encodings(model, 8, "decoder").matrix)


def test_rotary_angles_by_hand() -> None:
    found = encodings(encoder(position=blocks.Rotary(base=100.0)), 5)  # heads of 4 channels: 2 pairs
    assert found.angles is not None
    assert_close(found.angles, torch.tensor([[t, t / 10] for t in range(5)], dtype=torch.float64))
    assert float(found.dots[4, 1]) == pytest.approx(math.cos(3) + math.cos(0.3))


@pytest.mark.parametrize("kind", [*IMAGE_POSITIONS])
def test_images(kind: str) -> None:
    model = regard.build(vision(position=IMAGE_POSITIONS[kind])).eval()
    if kind == "none":
        with pytest.raises(InputError, match=r"position.kind \(none\) has no vectors"):
            encodings(model)
        return
    found = encodings(model)
    rows, columns = model.settings.grid
    assert found.grid == (rows, columns)
    assert len(found.matrix) == rows * columns
    if kind == "rotary-2d":
        assert found.angles is not None
        assert float(found.angles[columns, 0]) == 0, "the second row begins in the first column"
        assert float(found.angles[columns, -1]) > 0
        return
    with regard.record(model, "embedding.positions") as seen:
        model(torch.zeros(1, model.settings.channels, *model.settings.image))
    added = seen["embedding.positions"]
    assert isinstance(added, Tensor)
    assert_close(found.matrix.float(), added[int(model.settings.class_token) :])


# ---------------------------------------------------------------------------------------------------------- distances


def test_alibi_by_hand() -> None:
    found = distance_scores(
        Decoder(vocabulary=5, width=16, attention=blocks.Attention(heads=8), position=blocks.Alibi()), 5
    )
    assert found.distances.tolist() == [0, 1, 2, 3, 4]
    wanted = [[-(2.0 ** -(head + 1)) * distance for distance in range(5)] for head in range(8)]
    assert_close(found.scores, torch.tensor(wanted, dtype=torch.float64))
    assert distance_scores(encoder(position=blocks.Alibi()), 3).distances.tolist() == [-2, -1, 0, 1, 2]


def test_scores_by_distance_are_those_of_the_attention() -> None:
    """With equal keys for all, what differs between scores is the distance's share alone."""
    torch.manual_seed(0)
    model = regard.build(decoder(position=TEXT_POSITIONS["relative"])).eval()
    with torch.no_grad():
        model.decoder.position.weight.normal_()
    with regard.record(model, "decoder.0.attention.scores") as seen:
        model(torch.zeros(1, 10, dtype=torch.long))
    scores = seen["decoder.0.attention.scores"]
    assert isinstance(scores, Tensor)
    found = distance_scores(model, 10)
    for query in range(10):
        by_distance = scores[0, :, query, : query + 1].flip(-1)
        wanted = found.scores[:, : query + 1].float()
        assert_close(by_distance - by_distance[:, :1], wanted - wanted[:, :1], rtol=1e-5, atol=1e-5)


def test_transformer_xl_without_its_query() -> None:
    torch.manual_seed(0)
    model = regard.build(encoder(position=blocks.TransformerXL())).double().eval()
    with torch.no_grad():
        for layer in model.encoder:
            layer.attention.relative.distance.normal_()
    found = distance_scores(model, 4)
    assert found.scores.shape == (2 * 4, 7)
    relative = model.encoder[1].attention.relative
    row = encodings(model, 4).matrix[5]  # distance 2
    with torch.no_grad():
        head = (relative.project.weight[4:8] @ row) @ relative.distance[1] * 4**-0.5
    assert float(found.scores[5, 5]) == pytest.approx(float(head))
    assert found.distances.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert encodings(model, 4).first == -3


# ---------------------------------------------------------------------------------------------------------- rotations


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.integers(1, 40).map(lambda half: 2 * half), st.integers(-500, 500), st.sampled_from([1000.0, 10_000.0]))
def test_a_shift_is_a_rotation(width: int, offset: int, base: float) -> None:
    found = shift(blocks.Sinusoidal(base=base), width, offset, 100)
    assert found.error < 1e-9
    assert found.kept < 1e-12


@hypothesis_settings(max_examples=15, deadline=None)
@given(st.integers(1, 12).map(lambda part: 4 * part), st.tuples(st.integers(-20, 20), st.integers(-20, 20)))
def test_a_shift_on_a_grid_is_a_rotation(width: int, offset: tuple[int, int]) -> None:
    found = shift_2d(blocks.Sinusoidal2d(), width, offset, (5, 7))
    assert found.error < 1e-9
    assert found.kept < 1e-12


def test_the_best_rotation_is_found_from_vectors_alone() -> None:
    sines = encodings(encoder(position=blocks.Sinusoidal()), 50).matrix
    assert best_rotation(sines, 3).error < 1e-6
    assert best_rotation(sines, 3).shuffled > 0.5
    torch.manual_seed(0)
    assert best_rotation(torch.randn(50, 16), 3).error > 0.5, "random vectors do not turn into each other"


# ------------------------------------------------------------------------------------------------------------- errors


def test_what_cannot_be_shown() -> None:
    with pytest.raises(InputError, match=r"position.kind \(learned\) is learned.*give a model"):
        encodings(encoder(position=blocks.Learned()))
    with pytest.raises(InputError, match=r"position.kind \(relative\) is learned.*give a model"):
        distance_scores(encoder(position=blocks.Relative()))
    with pytest.raises(InputError, match=r"position.kind \(alibi\) has no vectors of places; distance_scores"):
        encodings(encoder(position=blocks.Alibi()))
    with pytest.raises(InputError, match=r"position.kind \(rotary\) adds no scores by distance; encodings"):
        distance_scores(encoder(position=blocks.Rotary()))
    with pytest.raises(InputError, match=r"position.kind \(none\) has no vectors of places; choose another"):
        encodings(encoder(position=blocks.NoPosition()))
    with pytest.raises(InputError, match=r"part \(decoder\) is not in a model of kind encoder; choose encoder"):
        encodings(encoder(), part="decoder")
    with pytest.raises(InputError, match=r"length \(1\) must be at least 2"):
        encodings(encoder(), 1)
    with pytest.raises(InputError, match=r"width \(7\) must be a multiple of 2.*choose 8"):
        shift(blocks.Sinusoidal(), 7, 1)
    with pytest.raises(InputError, match=r"width \(6\) must be a multiple of 4.*choose 8"):
        shift_2d(blocks.Sinusoidal2d(), 6, (1, 1))
    with pytest.raises(InputError, match=r"offset \(5\) must lie between 1 and 4"):
        best_rotation(torch.zeros(5, 2), 5)
