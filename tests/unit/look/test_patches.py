"""Maps over the patches of an image and what greying them out does, against plain arithmetic."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import write_decoder

import regard
from regard.blocks.settings import Attention
from regard.errors import InputError
from regard.look.occlusion import greyed, occlude
from regard.look.patches import CLASS, Query, concentration, over_patches
from regard.look.reading import Input
from regard.look.rollout import rollout
from regard.look.study import Study
from regard.models.settings import Classification, Vision
from regard.weights.directory import save_model

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 12, 8), dtype=np.uint8)
PATCHES = 6


def seeing(place: Path, class_token: bool = True, heads: bool = True) -> Study:
    torch.manual_seed(5)
    answer = {"label": Classification(classes=3, pooling="class" if class_token else "mean")} if heads else {}
    settings = Vision(
        image=(12, 8), patch=4, width=16, depth=2, attention=Attention(heads=2), heads=answer, class_token=class_token
    )
    save_model(regard.build(settings), place)
    return Study(regard.load(place, "cpu"))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return seeing(tmp_path_factory.mktemp("vision"))


def test_rows_of_the_weights(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    weights = study.tensor(run.key, "encoder.1.attention.weights")[1]
    for token, row in ((CLASS, weights[0]), (0, weights[1]), (5, weights[6]), (None, weights[1:].mean(0))):
        found = over_patches(study, run, Query(token, 1, 1))
        assert torch.allclose(found.patches_N, row[1:], atol=1e-6)
        assert found.rest == pytest.approx(float(row[0]), abs=1e-6)


def test_the_rollout_is_that_of_the_whole_model(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    pixels = torch.from_numpy(IMAGE)[None].float() / 127.5 - 1
    whole = rollout(study.network, pixels).own_BTT[0]
    for token, row in ((CLASS, whole[0]), (2, whole[3]), (None, whole[1:].mean(0))):
        found = over_patches(study, run, Query(token, rollout=True))
        assert torch.allclose(found.patches_N, row[1:], atol=1e-6)
        assert found.rest == pytest.approx(float(row[0]), abs=1e-6)


def plain_entropy(shares: torch.Tensor) -> float:
    shares = shares.double() / shares.double().sum()
    return float(-(shares * shares.log()).sum())


def test_concentration_beside_uniform_and_every_other_head(study: Study) -> None:
    """There are three other heads, so that all of them are drawn."""
    run = study.run(Input(image=IMAGE))
    found = concentration(study, run, Query(CLASS, 1, 0))
    rows = {
        (layer, head): study.tensor(run.key, f"encoder.{layer}.attention.weights")[head, 0, 1:]
        for layer in (0, 1)
        for head in (0, 1)
    }
    assert found.entropy == pytest.approx(plain_entropy(rows.pop((1, 0))), abs=1e-5)
    assert found.uniform == pytest.approx(math.log(PATCHES))
    assert found.chance == pytest.approx(np.mean([plain_entropy(row) for row in rows.values()]), abs=1e-5)
    assert found.draws == 3


def test_rollouts_through_random_heads_are_of_the_four_that_there_are(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    first, second = (study.tensor(run.key, f"encoder.{layer}.attention.weights").double() for layer in (0, 1))
    eye = torch.eye(PATCHES + 1).double()
    each = [plain_entropy(((b + eye) / 2 @ (a + eye) / 2)[0, 1:]) for a in first for b in second]
    found = concentration(study, run, Query(CLASS, rollout=True), draws=20, seed=1)
    assert min(each) <= found.chance <= max(each)
    assert found.draws == 20
    assert found == concentration(study, run, Query(CLASS, rollout=True), draws=20, seed=1)
    many = concentration(study, run, Query(CLASS, rollout=True), draws=4000)
    assert many.chance == pytest.approx(np.mean(each), abs=2e-3)


def test_without_a_class_token(tmp_path: Path) -> None:
    study = seeing(tmp_path, class_token=False)
    run = study.run(Input(image=IMAGE))
    found = over_patches(study, run, Query(None))
    assert found.rest == 0
    assert float(found.patches_N.sum()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(InputError, match=r"patch \(-1\) is not there; choose one from 0 to 5"):
        over_patches(study, run, Query(CLASS))


def test_what_is_not_there(study: Study, tmp_path: Path) -> None:
    run = study.run(Input(image=IMAGE))
    with pytest.raises(InputError, match=r"patch \(6\) is not there; choose one from −1, the class token, to 5"):
        over_patches(study, run, Query(6))
    for wrong in (Query(layer=2), Query(head=2)):
        with pytest.raises(InputError, match="which has 2 layers of 2 heads, counted from 0"):
            over_patches(study, run, wrong)
    reading = Study(regard.load(write_decoder(tmp_path), "cpu"))
    with pytest.raises(InputError, match="reads no images"):
        over_patches(reading, reading.run(Input("ein Hund")), Query())


# ------------------------------------------------------------------------------------------------------------ occlusion


def test_grey_patches_have_the_mean_colour() -> None:
    image = torch.from_numpy(IMAGE)
    found = greyed(image, [0, 3], 4)
    mean = IMAGE.astype(float).mean((1, 2)).round()
    for channel in range(3):
        assert (found[channel, :4, :4] == mean[channel]).all()
        assert (found[channel, 4:8, 4:8] == mean[channel]).all()
    kept = torch.ones(12, 8, dtype=torch.bool)
    kept[:4, :4] = kept[4:8, 4:8] = False
    assert torch.equal(found[:, kept], image[:, kept])


def test_occlusion_by_hand(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    query = Query(CLASS, 1, 1)
    found = occlude(study, run, query, 2, draws=20, seed=3)
    order = over_patches(study, run, query).patches_N.argsort(descending=True)[:2].tolist()
    assert found.patches == order

    def chance(image: torch.Tensor) -> torch.Tensor:
        network = study.network
        return network.heads["label"](network(image[None].float() / 127.5 - 1))[0].softmax(-1).detach()  # type: ignore[union-attr]

    whole = chance(torch.from_numpy(IMAGE))
    answer = int(whole.argmax())
    assert found.answer == f"class {answer}"
    assert found.before == pytest.approx(float(whole[answer]), abs=1e-6)
    assert found.after == pytest.approx(float(chance(greyed(torch.from_numpy(IMAGE), order, 4))[answer]), abs=1e-6)
    assert len(found.draws) == 20
    assert found.random == pytest.approx(np.mean(found.draws))
    pairs = [(a, b) for a in range(PATCHES) for b in range(a)]
    possible = [float(chance(greyed(torch.from_numpy(IMAGE), pair, 4))[answer]) for pair in pairs]
    assert all(min(abs(draw - other) for other in possible) < 1e-6 for draw in found.draws)
    assert len({round(draw, 7) for draw in found.draws}) > 3
    assert found == occlude(study, run, query, 2, draws=20, seed=3)
    assert found.draws != occlude(study, run, query, 2, draws=20, seed=4).draws


def test_occlusion_with_all_patches_grey_and_with_a_head_silent(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    every = occlude(study, run, Query(), PATCHES)
    assert every.after == pytest.approx(every.random, abs=1e-6)
    silent = study.run(Input(image=IMAGE, ablated=("encoder.0.attention.0",)))
    assert occlude(study, silent, Query(), 1).before == pytest.approx(silent.answers[0].rows[0].candidates[0].chance)


def test_occlusion_that_cannot_be(study: Study, tmp_path: Path) -> None:
    run = study.run(Input(image=IMAGE))
    for count in (0, 7):
        with pytest.raises(InputError, match=rf"count \({count}\) must be from 1 to 6, the patches of an image"):
            occlude(study, run, Query(), count)
    silent = seeing(tmp_path, heads=False)
    with pytest.raises(InputError, match="has no head for classes, so it has no answer to lose; choose another"):
        occlude(silent, silent.run(Input(image=IMAGE)), Query(), 1)
