"""How alike places are by distance: against formulas, loops and random vectors."""

from __future__ import annotations

import math

import pytest
import torch
from family_cases import IMAGE_POSITIONS, TEXT_POSITIONS, decoder, encoder, encoder_decoder, vision

import regard
from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.look.nearness import MOST_PATCHES, MOST_PLACES, placed
from regard.look.positions import distance_scores, encodings
from regard.models.settings import Normal

VECTORS = {"sinusoidal", "learned", "rotary", "transformer-xl"}
SCORES = {"relative", "alibi", "transformer-xl"}


@pytest.mark.parametrize("kind", [*TEXT_POSITIONS])
def test_what_each_kind_has(kind: str) -> None:
    model = regard.build(decoder(position=TEXT_POSITIONS[kind]))
    found = placed(model, 8)
    assert found.kind == kind
    assert (found.encodings is not None) == (kind in VECTORS) == (found.nearness is not None)
    assert (found.scores is not None) == (kind in SCORES)
    assert found.parts == ("decoder",) == (found.part,)
    if found.encodings is not None:
        assert torch.equal(found.encodings.matrix, encodings(model, 8).matrix)
        assert found.deviation == pytest.approx(1 / math.sqrt(found.encodings.matrix.shape[1]))
    if found.scores is not None:
        assert torch.equal(found.scores.scores, distance_scores(model, 8).scores)
    assert found.longest == (16 if kind == "learned" else MOST_PLACES)
    assert placed(model).length == (16 if kind == "learned" else 64)


@pytest.mark.parametrize("kind", [*IMAGE_POSITIONS])
def test_patches(kind: str) -> None:
    found = placed(regard.build(vision(position=IMAGE_POSITIONS[kind])), 2)
    assert found.length == 6, "an image has as many patches as it has"
    if kind == "none":
        assert found.encodings is found.nearness is None
        return
    assert found.encodings is not None
    assert found.nearness is not None
    rows, columns = found.encodings.grid or (0, 0)
    by_distance: dict[int, list[float]] = {}
    vectors = found.encodings.matrix
    for one in range(rows * columns):
        for two in range(rows * columns):
            apart = round(math.hypot(one // columns - two // columns, one % columns - two % columns))
            cosine = torch.cosine_similarity(vectors[one], vectors[two], dim=0)
            by_distance.setdefault(apart, []).append(float(cosine))
    for apart, cosines in by_distance.items():
        assert float(found.nearness.mean[apart]) == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)
        assert float(found.nearness.least[apart]) == pytest.approx(min(cosines), abs=1e-6)
        assert float(found.nearness.most[apart]) == pytest.approx(max(cosines), abs=1e-6)
    assert len(found.nearness.distances) == len(by_distance)


def test_sinusoids_by_their_formula() -> None:
    near = placed(regard.build(encoder(position=blocks.Sinusoidal())), 10).nearness
    assert near is not None
    wanted = [sum(math.cos(apart / 10_000 ** (2 * j / 16)) for j in range(8)) / 8 for apart in range(10)]
    assert near.mean.tolist() == pytest.approx(wanted, abs=1e-6)
    assert near.least.tolist() == pytest.approx(near.most.tolist(), abs=1e-6), "the distance says it all"
    pairs = [wanted[abs(one - two)] for one in range(10) for two in range(10) if one != two]
    assert near.whole == pytest.approx(sum(pairs) / 90, abs=1e-6)


def test_random_vectors_stray_as_far_as_told() -> None:
    found = placed(regard.build(encoder(position=blocks.Learned(length=200))), 200)
    torch.manual_seed(0)
    drawn = torch.nn.functional.normalize(torch.randn(3000, 16), dim=1)
    cosines = (drawn[:1500] * drawn[1500:]).sum(1)
    assert float(cosines.std()) == pytest.approx(found.deviation, rel=0.06)
    assert abs(found.nearness.whole) < 0.02, "an untrained table is as good as random"  # type: ignore[union-attr]


@pytest.mark.parametrize("initial", [{}, {"initial": Normal(deviation=0.3)}])
def test_scores_before_training_spread_as_far_as_told(initial: dict[str, Normal]) -> None:
    torch.manual_seed(0)
    model = regard.build(encoder(position=blocks.Relative(buckets=256, longest=300), **initial))
    found = placed(model)
    weight = model.encoder.position.weight  # type: ignore[union-attr]
    assert float(weight.detach().std()) == pytest.approx(found.untrained, rel=0.1)
    assert placed(regard.build(encoder(position=blocks.Alibi()))).untrained is None


def test_both_sides() -> None:
    model = regard.build(encoder_decoder(position=blocks.Learned(length=8)))
    assert placed(model).parts == ("encoder", "decoder")
    found = placed(model, part="decoder")
    assert found.part == "decoder"
    assert torch.equal(found.encodings.matrix, model.target.position.weight.detach().double())  # type: ignore[union-attr]


def test_what_is_refused() -> None:
    model = regard.build(encoder(position=blocks.Learned(length=8)))
    with pytest.raises(InputError, match=r"length \(9\) must lie between 2 and 8"):
        placed(model, 9)
    with pytest.raises(InputError, match=r"length \(1\) must lie between 2 and 8"):
        placed(model, 1)
    with pytest.raises(InputError, match=r"part \(decoder\) is not in a model of kind encoder"):
        placed(model, part="decoder")
    many = regard.build(vision(position=blocks.Sinusoidal2d()).model_copy(update={"image": (4 * 33, 4 * 33)}))
    with pytest.raises(InputError, match=rf"has 1,089 patches.*at most {MOST_PATCHES:,} are compared"):
        placed(many)
