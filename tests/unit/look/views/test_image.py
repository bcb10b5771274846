"""Image view: attention over patches and deletion, against plain arithmetic."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.blocks.settings import Attention
from regard.errors import InputError
from regard.look.input import Input
from regard.look.study import Study, StudyRun
from regard.look.views.heads import rollout
from regard.look.views.image import (
    CLASS,
    PatchesRequest,
    concentration,
    deletion,
    greyed,
    patch_attention,
    relevance,
)
from regard.models.settings import Classification, Vision
from regard.weights.directory import save_model


def query(run: StudyRun, query: int | None = CLASS, layer: int = 0, head: int = 0, rollout: bool = False) -> Any:
    return PatchesRequest(run=run.key, query=query, layer=layer, head=head, rollout=rollout)


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


def test_rows_of_weights_and_of_the_rollout(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    weights = study.tensor(run.key, "encoder.1.attention.weights")[1]
    whole = rollout(study, run, "rollout.encoder")
    for rolled, map_TT in ((False, weights), (True, whole)):
        for token, row in ((CLASS, map_TT[0]), (0, map_TT[1]), (5, map_TT[6]), (None, map_TT[1:].mean(0))):
            patches, rest = patch_attention(study, query(run, token, 1, 1, rolled))
            assert torch.allclose(patches, row[1:], atol=1e-6)
            assert rest == pytest.approx(float(row[0]), abs=1e-6)


def plain_entropy(shares: torch.Tensor) -> float:
    shares = shares.double() / shares.double().sum()
    return float(-(shares * shares.log()).sum())


def test_concentration_against_every_other_head(study: Study) -> None:
    """There are three other heads, so all of them are drawn."""
    run = study.run(Input(image=IMAGE))
    found = concentration(study, query(run, CLASS, 1, 0))
    rows = {
        (layer, head): study.tensor(run.key, f"encoder.{layer}.attention.weights")[head, 0, 1:]
        for layer in (0, 1)
        for head in (0, 1)
    }
    assert found["entropy"] == pytest.approx(plain_entropy(rows.pop((1, 0))), abs=1e-5)
    assert found["uniform"] == pytest.approx(math.log(PATCHES))
    assert found["chance"] == pytest.approx(np.mean([plain_entropy(row) for row in rows.values()]), abs=1e-5)
    assert found["draws"] == 3


def test_random_rollouts_are_of_the_four_possible_ones(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    asked = query(run, rollout=True)
    first, second = (study.tensor(run.key, f"encoder.{layer}.attention.weights").double() for layer in (0, 1))
    eye = torch.eye(PATCHES + 1).double()
    each = [plain_entropy(((b + eye) / 2 @ (a + eye) / 2)[0, 1:]) for a in first for b in second]
    found = concentration(study, asked, draws=20, seed=1)
    assert found["chance"] is not None
    assert min(each) <= found["chance"] <= max(each)
    assert found == concentration(study, asked, draws=20, seed=1)
    assert concentration(study, asked, draws=4000)["chance"] == pytest.approx(np.mean(each), abs=2e-3)


def chances(study: Study, patches: Any) -> torch.Tensor:
    """The probabilities of the classes without some patches."""
    pixels = greyed(torch.from_numpy(IMAGE), patches, 4)[None].float() / 127.5 - 1
    network: Any = study.network
    return network.heads["label"](network(pixels))[0].softmax(-1).detach()  # type: ignore[no-any-return]


def test_deletion_by_hand(study: Study) -> None:
    asked = query(study.run(Input(image=IMAGE)), CLASS, 1, 1)
    found = deletion(study, asked, steps=PATCHES, draws=2000, seed=3)
    answer = int(chances(study, []).argmax())
    assert found["answer"] == f"class {answer}"
    assert found["shares"] == pytest.approx([count / PATCHES for count in range(PATCHES + 1)])
    order = patch_attention(study, asked)[0].argsort(descending=True).tolist()
    for name, patches in (("overlay", order), ("centre", [2, 3, 0, 1, 4, 5])):
        expected = [float(chances(study, patches[:count])[answer]) for count in range(PATCHES + 1)]
        assert found[name] == pytest.approx(expected, abs=1e-6), name
    every = [float(chances(study, pair)[answer]) for pair in combinations(range(PATCHES), 2)]
    assert found["random"][2] == pytest.approx(np.mean(every), abs=4 * np.std(every) / 2000**0.5)
    mean = IMAGE.astype(float).mean((1, 2)).round()
    assert (greyed(torch.from_numpy(IMAGE), [3], 4)[:, 4:8, 4:8].numpy() == mean[:, None, None]).all(), (
        "the mean colour"
    )
    silent = study.run(Input(image=IMAGE, ablated=("encoder.0.attention.0",)))
    before = silent.answers[0].rows[0].candidates[0].chance
    assert deletion(study, query(silent))["overlay"][0] == pytest.approx(before)


def plain_relevance(study: Study) -> tuple[torch.Tensor, float]:
    """Integrated gradients over pixels in float64, summed over each patch, and what they must add up to."""
    network = study.network.double()  # type: ignore[union-attr]
    image, grey = (torch.from_numpy(IMAGE).double(), greyed(torch.from_numpy(IMAGE), range(PATCHES), 4).double())

    def chances(pixels: torch.Tensor) -> torch.Tensor:
        shares: torch.Tensor = network.heads["label"](network(pixels[None] / 127.5 - 1))[0].log_softmax(-1)
        return shares

    answer = int(chances(image).argmax())
    points, weights = np.polynomial.legendre.leggauss(64)
    total = torch.zeros_like(image)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        pixels = (grey + point * (image - grey)).requires_grad_()
        total += weight * torch.autograd.grad(chances(pixels)[answer], pixels)[0]
    with torch.no_grad():
        change = float(chances(image)[answer] - chances(grey)[answer])
    network.float()
    return (total * (image - grey)).view(3, 3, 4, 2, 4).sum((0, 2, 4)).flatten(), change


def test_relevance_and_the_deletion_curve(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    found, (expected, change) = relevance(study, run.key), plain_relevance(study)
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, atol=0.02 * largest, rtol=0)
    assert float(found.sum()) == pytest.approx(change, abs=0.02 * largest)
    asked = query(run).model_copy(update={"gradient": True})
    assert patch_attention(study, asked)[0].tolist() == found.tolist()
    assert deletion(study, asked)["overlay"] != deletion(study, query(run))["overlay"]
    silent = study.run(Input(image=IMAGE, ablated=("encoder.0.attention.0",)))
    assert not torch.allclose(relevance(study, silent.key), found, atol=1e-3)
    curve = deletion(study, asked, steps=PATCHES, draws=3, seed=1)
    for name in ("overlay", "centre", "random"):
        middle = (np.array(curve[name][1:]) + np.array(curve[name][:-1])) / 2
        assert curve["area"][name] == pytest.approx(middle.mean(), abs=1e-6)


def test_other_models(tmp_path: Path) -> None:
    """tests/unit/serving/test_page.py has wrong requests."""
    plain = seeing(tmp_path / "one", class_token=False)
    run = plain.run(Input(image=IMAGE))
    assert patch_attention(plain, query(run, None))[1] == 0
    with pytest.raises(InputError, match=r"patch \(-1\) must be from 0 to 5"):
        patch_attention(plain, query(run))
    silent = seeing(tmp_path / "two", heads=False)
    with pytest.raises(InputError, match="has no classification head"):
        deletion(silent, query(silent.run(Input(image=IMAGE))))
