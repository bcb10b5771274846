"""The rollout of a run, against the product written out in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import write_translator

import regard
from regard.errors import InputError
from regard.look.reading import Input
from regard.look.run_rollout import rollout_map, rollouts_of
from regard.look.study import Run, Study

IMAGE = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)


def mixed(weights: Any) -> Any:
    """A layer: the heads' mean, half of it, and half of what was there."""
    mean = np.asarray(weights, np.float64).mean(0)
    return (mean + np.eye(len(mean))) / 2


def layers(study: Study, run: Run, stack: str, kind: str, count: int) -> list[Any]:
    return [study.tensor(run.key, f"{stack}.{layer}.{kind}.weights").numpy() for layer in range(count)]


@pytest.mark.parametrize(
    ("write", "stack", "given"),
    [
        (write_decoder, "decoder", Input("ein Hund läuft")),
        (write_encoder, "encoder", Input("ein Hund läuft")),
        (write_vision, "encoder", Input(image=IMAGE)),
    ],
)
def test_one_stack(write: Any, stack: str, given: Input, tmp_path: Path) -> None:
    study = Study(regard.load(write(tmp_path), "cpu"))
    run = study.run(given)
    assert rollouts_of(study) == [f"rollout.{stack}"]
    expected = np.eye(len(run.sides[stack].tokens))
    for weights in layers(study, run, stack, "attention", study.attentions[0].layers):
        expected = mixed(weights) @ expected
    found = rollout_map(study, run, f"rollout.{stack}")[0].numpy()
    assert np.abs(found - expected).max() < 1e-6
    assert np.allclose(found.sum(-1), 1, atol=1e-5)


def test_a_translator_through_both_stacks_and_with_a_head_silent(tmp_path: Path) -> None:
    study = Study(regard.load(write_translator(tmp_path), "cpu"))
    assert rollouts_of(study) == ["rollout.encoder", "rollout.decoder", "rollout.source"]
    found = []
    for silent in ((), ("encoder.0.attention.0",)):
        run = study.run(Input("ein Hund läuft", to="en", ablated=silent))
        encoder = mixed(layers(study, run, "encoder", "attention", 1)[0])
        own = mixed(layers(study, run, "decoder", "attention", 1)[0])
        cross = layers(study, run, "decoder", "cross", 1)[0].mean(0)
        found.append(rollout_map(study, run, "rollout.source")[0].numpy())
        assert np.abs(found[-1] - cross @ encoder / 2).max() < 1e-6
        assert np.abs(rollout_map(study, run, "rollout.decoder")[0].numpy() - own / 2).max() < 1e-6
    assert np.abs(found[0] - found[1]).max() > 1e-6
    with pytest.raises(
        InputError, match=r"is no rollout of this model; choose rollout\.encoder or rollout\.decoder or"
    ):
        rollout_map(study, run, "rollout.nothing")
