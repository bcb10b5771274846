"""Positions view: the decks' numbers, formulas in float64, and what a model really adds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from family_cases import IMAGE_POSITIONS, TEXT_POSITIONS, decoder, encoder, encoder_decoder, vision
from torch.testing import assert_close

import regard
from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.look.views.positions import MAX_LENGTH, cosines_by_distance, distance_scores, encodings, positions_answer
from regard.models.settings import Decoder, Encoder

DECK = [
    [0.000, 0.841, 0.909, 0.141, -0.757],
    [1.000, 0.540, -0.416, -0.990, -0.654],
    [0.000, 0.025, 0.050, 0.075, 0.100],
    [1.000, 1.000, 0.999, 0.997, 0.995],
    [0.000, 0.001, 0.001, 0.002, 0.003],
]
"""By dimension, positions 0 to 4, of width 5."""


def test_sinusoids_by_their_formula() -> None:
    model = Encoder(vocabulary=5, width=5, depth=1, attention=blocks.Attention(heads=1), position=blocks.Sinusoidal())
    assert_close(
        encodings(regard.build(model), 5).matrix.mT, torch.tensor(DECK, dtype=torch.float64), rtol=0, atol=0.5e-3
    )
    found = encodings(regard.build(encoder(position=blocks.Sinusoidal())), 12)
    wanted = [sum(math.cos(apart / 10_000 ** (2 * j / 16)) for j in range(8)) for apart in range(12)]
    for first in range(12):
        for second in range(12):
            assert float(found.dots[first, second]) == pytest.approx(wanted[abs(first - second)], abs=1e-5)
    assert_close(found.cosines, found.dots / 8, rtol=0, atol=1e-6)
    near = cosines_by_distance(found)
    assert near.mean.tolist() == pytest.approx([value / 8 for value in wanted], abs=1e-6)
    assert near.least.tolist() == pytest.approx(near.most.tolist(), abs=1e-6), "only the distance matters"
    pairs = [wanted[abs(one - two)] / 8 for one in range(12) for two in range(12) if one != two]
    assert near.whole == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


def test_encodings_are_what_the_model_adds() -> None:
    for kind in ("sinusoidal", "learned"):
        for family in (encoder, decoder, encoder_decoder):
            model: Any = regard.build(family(position=TEXT_POSITIONS[kind])).eval()
            name = "source" if family is encoder_decoder else "embedding"
            tokens = torch.zeros(1, 9, dtype=torch.long)
            with regard.record(model, f"{name}.positions") as seen:
                model(tokens, tokens) if family is encoder_decoder else model(tokens)
            assert_close(encodings(model, 9).matrix.float(), seen.calls(f"{name}.positions")[0].reshape(9, 16))
    model = regard.build(encoder_decoder(position=blocks.Learned(length=8)))
    assert torch.equal(encodings(model, 8, "decoder").matrix, model.target.position.weight.detach().double())
    assert not torch.equal(encodings(model, 8).matrix, encodings(model, 8, "decoder").matrix)


def test_rotary_angles_by_hand() -> None:
    found = encodings(regard.build(encoder(position=blocks.Rotary(base=100.0))), 5)  # heads of 4 channels: 2 pairs
    assert found.angles is not None
    assert_close(found.angles, torch.tensor([[t, t / 10] for t in range(5)], dtype=torch.float64))
    assert float(found.dots[4, 1]) == pytest.approx(math.cos(3) + math.cos(0.3))


def test_images() -> None:
    for kind, position in IMAGE_POSITIONS.items():
        model: Any = regard.build(vision(position=position)).eval()
        answer = positions_answer(model, 2)
        assert answer["length"] == 6, "the number of patches is fixed"
        if kind == "none":
            assert answer["encodings"] is None
            with pytest.raises(InputError, match=r"position.kind \(none\)"):
                encodings(model)
            continue
        found = encodings(model)
        assert found.grid == model.settings.grid == (2, 3)
        by_distance: dict[int, list[float]] = {}
        for one in range(6):
            for two in range(6):
                apart = round(math.hypot(one // 3 - two // 3, one % 3 - two % 3))
                cosine = torch.cosine_similarity(found.matrix[one], found.matrix[two], dim=0)
                by_distance.setdefault(apart, []).append(float(cosine))
        near = cosines_by_distance(found)
        assert len(near.mean) == len(by_distance)
        for apart, cosines in by_distance.items():
            values = [float(each[apart]) for each in (near.mean, near.least, near.most)]
            assert values == pytest.approx([sum(cosines) / len(cosines), min(cosines), max(cosines)], abs=1e-6)
        if kind == "rotary-2d":
            assert found.angles is not None
            assert float(found.angles[3, 0]) == 0, "the second row begins in the first column"
            assert float(found.angles[3, -1]) > 0
            continue
        with regard.record(model, "embedding.positions") as seen:
            model(torch.zeros(1, model.settings.channels, *model.settings.image))
        added = seen.calls("embedding.positions")[0]
        assert_close(found.matrix.float(), added[int(model.settings.class_token) :])


def test_alibi_by_hand() -> None:
    settings = Decoder(vocabulary=5, width=16, attention=blocks.Attention(heads=8), position=blocks.Alibi())
    found = distance_scores(regard.build(settings), 5)
    assert found.distances.tolist() == [0, 1, 2, 3, 4]
    wanted = [[-(2.0 ** -(head + 1)) * distance for distance in range(5)] for head in range(8)]
    assert_close(found.scores, torch.tensor(wanted, dtype=torch.float64))
    assert distance_scores(regard.build(encoder(position=blocks.Alibi())), 3).distances.tolist() == [-2, -1, 0, 1, 2]


def test_relative_scores_are_those_of_the_attention() -> None:
    """With equal keys everywhere, scores differ only by distance."""
    torch.manual_seed(0)
    model: Any = regard.build(decoder(position=TEXT_POSITIONS["relative"])).eval()
    with torch.no_grad():
        model.decoder.position.weight.normal_()
    with regard.record(model, "decoder.0.attention.scores") as seen:
        model(torch.zeros(1, 10, dtype=torch.long))
    scores, found = seen.calls("decoder.0.attention.scores")[0], distance_scores(model, 10)
    for query in range(10):
        by_distance = scores[0, :, query, : query + 1].flip(-1)
        wanted = found.scores[:, : query + 1].float()
        assert_close(by_distance - by_distance[:, :1], wanted - wanted[:, :1], rtol=1e-5, atol=1e-5)


def test_transformer_xl_without_its_query() -> None:
    torch.manual_seed(0)
    model: Any = regard.build(encoder(position=blocks.TransformerXL())).double().eval()
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


def test_answers_for_every_kind() -> None:
    for kind, position in TEXT_POSITIONS.items():
        answer = positions_answer(regard.build(decoder(position=position)))
        assert answer["kind"] == kind
        assert (answer["encodings"] is not None) == (kind in {"sinusoidal", "learned", "rotary", "transformer-xl"})
        assert (answer["scores"] is not None) == (kind in {"relative", "alibi", "transformer-xl"})
        assert (answer["parts"], answer["part"]) == (["decoder"], "decoder")
        assert answer["longest"] == (16 if kind == "learned" else MAX_LENGTH)
        assert answer["length"] == (16 if kind == "learned" else 64)
    both = regard.build(encoder_decoder(position=blocks.Learned(length=8)))
    assert positions_answer(both, part="decoder")["parts"] == ["encoder", "decoder"]


def test_baselines_of_random_values() -> None:
    answer = positions_answer(regard.build(encoder(position=blocks.Learned(length=200))), 200)
    torch.manual_seed(0)
    drawn = torch.nn.functional.normalize(torch.randn(3000, 16), dim=1)
    assert float((drawn[:1500] * drawn[1500:]).sum(1).std()) == pytest.approx(answer["deviation"], rel=0.06)
    for initial in ({}, {"initial": blocks.Normal(deviation=0.3)}):
        model: Any = regard.build(encoder(position=blocks.Relative(buckets=256, longest=300), **initial))
        spread = float(model.encoder.position.weight.detach().std())
        assert spread == pytest.approx(positions_answer(model)["untrained"], rel=0.1)


def test_errors() -> None:
    text, alibi, rotary, learned = (
        regard.build(encoder(position=position))
        for position in (blocks.Sinusoidal(), blocks.Alibi(), blocks.Rotary(), blocks.Learned(length=8))
    )
    for wrong, setting in (
        (lambda: encodings(alibi), r"position.kind \(alibi\).*distance_scores"),
        (lambda: distance_scores(rotary), r"position.kind \(rotary\).*encodings"),
        (lambda: encodings(text, part="decoder"), r"part \(decoder\) must be encoder"),
        (lambda: encodings(text, 1), r"length \(1\)"),
        (lambda: positions_answer(learned, 9), r"length \(9\)"),
    ):
        with pytest.raises(InputError, match=setting):
            wrong()
    many = regard.build(vision(position=blocks.Sinusoidal2d()).model_copy(update={"image": (4 * 33, 4 * 33)}))
    with pytest.raises(InputError, match="1,089 patches"):
        positions_answer(many)
