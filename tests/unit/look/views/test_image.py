"""Image view: attention over patches and occlusion, against plain arithmetic."""

from __future__ import annotations

import math
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
    occlude,
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


def test_occlusion_by_hand(study: Study) -> None:
    run, image = study.run(Input(image=IMAGE)), torch.from_numpy(IMAGE)
    asked = query(run, CLASS, 1, 1)
    found = occlude(study, asked, 2, draws=20, seed=3)
    order = patch_attention(study, asked)[0].argsort(descending=True)[:2].tolist()
    assert found["patches"] == order

    def chance(image: torch.Tensor) -> torch.Tensor:
        network = study.network
        return network.heads["label"](network(image[None].float() / 127.5 - 1))[0].softmax(-1).detach()  # type: ignore[union-attr]

    whole = chance(image)
    answer = int(whole.argmax())
    assert found["answer"] == f"class {answer}"
    assert found["before"] == pytest.approx(float(whole[answer]), abs=1e-6)
    assert found["after"] == pytest.approx(float(chance(greyed(image, order, 4))[answer]), abs=1e-6)
    assert found["random"] == pytest.approx(np.mean(found["draws"]))
    mean = IMAGE.astype(float).mean((1, 2)).round()
    assert (greyed(image, [3], 4)[:, 4:8, 4:8].numpy() == mean[:, None, None]).all(), "the mean colour"
    pairs = [(a, b) for a in range(PATCHES) for b in range(a)]
    possible = [float(chance(greyed(image, pair, 4))[answer]) for pair in pairs]
    assert all(min(abs(draw - other) for other in possible) < 1e-6 for draw in found["draws"])
    assert len({round(draw, 7) for draw in found["draws"]}) > 3
    assert found == occlude(study, asked, 2, draws=20, seed=3)
    every = occlude(study, query(run), PATCHES)
    assert every["after"] == pytest.approx(every["random"], abs=1e-6)
    silent = study.run(Input(image=IMAGE, ablated=("encoder.0.attention.0",)))
    before = silent.answers[0].rows[0].candidates[0].chance
    assert occlude(study, query(silent), 1)["before"] == pytest.approx(before)


def plain_relevance(study: Study) -> torch.Tensor:
    """Chefer et al. 2021 by autograd over explicit attention matrices, in float64."""
    network = study.network.double()  # type: ignore[union-attr]
    x = network.embedding(torch.from_numpy(IMAGE).double()[None] / 127.5 - 1)[0]
    matrices = []
    for layer in network.encoder:
        attention = layer.attention
        q, k, v = (each(x).view(len(x), 2, 8).transpose(0, 1) for each in (attention.q, attention.k, attention.v))
        matrices.append((q @ k.mT / 8**0.5).softmax(-1))
        matrices[-1].retain_grad()
        mixed = attention.out((matrices[-1] @ v).transpose(0, 1).flatten(1))
        x = layer.attention_residual.norm(x + mixed)  # post-norm
        x = layer.ffn_residual.norm(x + layer.ffn(x))
    logits = network.heads["label"](x[None] if network.encoder.norm is None else network.encoder.norm(x)[None])[0]
    logits.max().backward()
    total = torch.eye(len(x), dtype=torch.float64)
    for matrix in matrices:
        assert matrix.grad is not None
        total = total + (matrix * matrix.grad).clamp(min=0).mean(0) @ total
    network.zero_grad()
    network.float()
    return (total - torch.eye(len(x), dtype=torch.float64)).detach()


def test_relevance_and_the_deletion_curve(study: Study) -> None:
    run = study.run(Input(image=IMAGE))
    found, expected = relevance(study, run.key), plain_relevance(study)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-3)
    asked = query(run).model_copy(update={"gradient": True})
    torch.testing.assert_close(patch_attention(study, asked)[0].double(), expected[0, 1:], atol=1e-5, rtol=1e-3)
    curve = deletion(study, asked, steps=PATCHES, draws=3, seed=1)
    assert curve["shares"] == pytest.approx([count / PATCHES for count in range(PATCHES + 1)])
    whole = occlude(study, asked, PATCHES)
    for name in ("overlay", "centre", "random"):
        assert curve[name][0] == pytest.approx(whole["before"], abs=1e-6)
        assert curve[name][-1] == pytest.approx(whole["after"], abs=1e-6)
        middle = (np.array(curve[name][1:]) + np.array(curve[name][:-1])) / 2
        assert curve["area"][name] == pytest.approx(middle.mean(), abs=1e-6)
    assert curve["overlay"][2] == pytest.approx(occlude(study, asked, 2)["after"], abs=1e-6)


def test_other_models(tmp_path: Path) -> None:
    """tests/unit/serving/test_page.py has wrong requests."""
    plain = seeing(tmp_path / "one", class_token=False)
    run = plain.run(Input(image=IMAGE))
    assert patch_attention(plain, query(run, None))[1] == 0
    with pytest.raises(InputError, match=r"patch \(-1\) must be from 0 to 5"):
        patch_attention(plain, query(run))
    silent = seeing(tmp_path / "two", heads=False)
    with pytest.raises(InputError, match="has no classification head"):
        occlude(silent, query(silent.run(Input(image=IMAGE))), 1)
