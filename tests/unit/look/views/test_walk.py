"""Walk view: the paper's arithmetic on recorded tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from study_cases import run_of

from regard.errors import InputError
from regard.look.study import Study
from regard.look.views.walk import walk


def test_steps_are_the_papers_arithmetic(studies: dict[str, Study]) -> None:
    for family in studies:
        study, run = run_of(studies, family)
        for group in study.attentions:
            path = f"{group.stack}.0.{group.kind}"
            both = [walk(study, run, path, head) for head in (0, 1)]
            steps = {step["name"]: step["numbers"] for step in both[1]}
            assert [step["name"] for step in both[0]] == [step["name"] for step in both[1]]
            q, k, v = (study.tensor(run.key, f"{path}.{part}")[:, 1] for part in "qkv")
            product = q @ k.T
            hidden = torch.full_like(product, -torch.inf).triu(1)
            masked = group.stack == "decoder" and group.kind == "attention"
            weights = (product / q.shape[-1] ** 0.5 + (hidden if masked else 0)).softmax(-1)
            for name, expected in (
                ("q·k", product),
                ("scale", product / q.shape[-1] ** 0.5),
                (f"{path}.weights", weights),
                (f"{path}.heads", weights @ v),
            ):
                numbers = steps[name]
                assert np.allclose(numbers["corner"], expected[:6, :6], atol=1e-5), (family, name)
                assert numbers["shape"] == list(expected.shape)
                assert (numbers["least"], numbers["most"]) == pytest.approx(
                    (float(expected.min()), float(expected.max())), abs=1e-5
                )


def test_the_last_step_shows_the_answers(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder")
    last = walk(study, run, "decoder.1.attention", 0)[-1]
    best = run.answers[0].rows[-1].candidates[0]
    assert last["words"][-1][1] == f"{best.text}  {best.chance:.4f}"
    for wrong in ("encoder.0.attention", "decoder.9.attention", "decoder.0.cross"):
        with pytest.raises(InputError, match="is not in this model"):
            walk(study, run, wrong, 0)
