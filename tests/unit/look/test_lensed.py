"""What each layer of a run would say, against the model's own modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import write_translator

import regard
from regard.blocks.edits import Ablate
from regard.errors import InputError
from regard.look.drawn_lens import lens_picture
from regard.look.lensed import lensed
from regard.look.reading import Input
from regard.look.study import Study

pytestmark = pytest.mark.slow

TEXT = "ein Hund läuft ein"
WRITERS = {"translator": write_translator, "decoder": write_decoder, "encoder": write_encoder, "vision": write_vision}
CASES = [
    ("translator", "output"),
    ("decoder", "output"),
    ("encoder", "masked"),
    ("encoder", "label"),
    ("vision", "label"),
]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Study]:
    return {name: Study(regard.load(write(tmp_path_factory.mktemp(name)), "cpu")) for name, write in WRITERS.items()}


def given(family: str, **more: Any) -> Input:
    if family == "vision":
        return Input(image=np.arange(64, dtype=np.uint8).reshape(1, 8, 8), **more)
    return Input(TEXT, to="en" if family == "translator" else None, **more)


@pytest.mark.parametrize(("family", "output"), CASES)
def test_the_last_layer_says_what_the_model_says(studies: dict[str, Study], family: str, output: str) -> None:
    study = studies[family]
    run = study.run(given(family))
    found = lensed(study, run, output)
    answer = next(each for each in run.answers if each.name == output)
    last = found.layers[-1]
    for place, row in enumerate(answer.rows):
        assert [each.chance for each in row.candidates] == pytest.approx(last.chances[place], abs=1e-5)
        assert found.texts[found.final[place]] == row.candidates[0].text
        if row.actual is not None:
            assert last.actual_chance[place] == pytest.approx(row.actual.chance, abs=1e-5)
            assert found.texts[found.actual[place]] == row.actual.text  # type: ignore[index]
    assert len(answer.rows) == len(found.final)
    assert last.final_rank == [0] * len(found.final)
    assert last.agrees == 1
    assert found.each is answer.each
    assert len(found.layers) == study.loaded.settings.depth + 1


def test_shares_and_first_layers_by_hand(studies: dict[str, Study]) -> None:
    study = studies["decoder"]
    run = study.run(given("decoder"))
    found = lensed(study, run)
    firsts = [[row[0] for row in layer.tokens] for layer in found.layers]
    for place, answer in enumerate(found.final):
        saying = [layer for layer, row in enumerate(firsts) if row[place] == answer]
        assert found.first[place] == saying[0]
        assert found.settled[place] == min(
            layer for layer in saying if all(other in saying for other in range(layer, len(firsts)))
        )
    most = max(found.final.count(answer) for answer in found.final)
    assert found.constant == most / len(found.final)
    for layer, row in zip(found.layers, firsts, strict=True):
        assert layer.agrees == pytest.approx(sum(a == b for a, b in zip(row, found.final, strict=True)) / len(row))
        known = [(a, b) for a, b in zip(row, found.actual, strict=True) if b is not None]
        assert layer.right == pytest.approx(sum(a == b for a, b in known) / len(known))
    assert found.choices == study.loaded.settings.vocabulary  # type: ignore[union-attr]
    assert found.actual[-1] is None
    assert found.layers[0].actual_chance[-1] is None


def test_silent_heads_are_silent(studies: dict[str, Study]) -> None:
    study = studies["decoder"]
    run = study.run(given("decoder", ablated=("decoder.0.attention.1",)))
    found = lensed(study, run)
    network: Any = study.network
    tokens = torch.tensor([run.sides["decoder"].ids])
    edit = {"decoder.0.attention.heads": Ablate([1])}
    with torch.no_grad(), regard.record(network, "decoder.0.residual", edit=edit) as seen:
        network(tokens)
        chances = network.output(seen["decoder.0.residual"])[0].softmax(-1)
    for place in range(tokens.shape[1]):
        assert found.layers[1].chances[place] == pytest.approx(chances[place].topk(5)[0].tolist(), abs=1e-5)
        entropy = float(-(chances[place] * chances[place].log()).sum())
        assert found.layers[1].entropy[place] == pytest.approx(entropy, abs=1e-4)
    assert found.layers != lensed(study, study.run(given("decoder"))).layers


def test_an_output_that_is_not_there(studies: dict[str, Study]) -> None:
    study = studies["encoder"]
    with pytest.raises(InputError, match="choose masked or label"):
        lensed(study, study.run(given("encoder")), "nothing")


@pytest.mark.parametrize(("family", "output"), [CASES[0], CASES[3]])
def test_pictures(studies: dict[str, Study], tmp_path: Path, family: str, output: str) -> None:
    study = studies[family]
    run = study.run(given(family))
    found = lensed(study, run, output)
    tokens = [each.text for each in run.sides[found.stack].tokens]
    lens_picture(found, tokens, tmp_path / "a.png", title="a $title")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"first \(500\) must be one of"):
        lens_picture(found, tokens, tmp_path / "b.svg", 500)
