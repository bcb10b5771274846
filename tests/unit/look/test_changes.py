"""Heads that work otherwise, against arithmetic on what they give."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from torch.testing import assert_close

import regard
from regard.errors import InputError
from regard.look.addresses import mean_outputs
from regard.look.changes import change_named, edits_for
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7]])
NAME = "decoder.0.attention.heads"


def test_words_become_edits() -> None:
    model: Any = cases.unsettled(build(cases.decoder()))
    words = ["decoder.0.attention.0", "decoder.0.attention.1*0.25", "decoder.0.attention.2=mean"]
    changes = [change_named(model, word) for word in words]
    assert [str(each) for each in changes] == words
    with torch.no_grad():
        with regard.record(model, NAME) as plain:
            model(TOKENS)
        edits = edits_for(model, changes, lambda names: mean_outputs(model, lambda: model(TOKENS), names))
        with regard.record(model, NAME, edit=edits) as changed:
            model(TOKENS)
    before, after = plain[NAME][0], changed[NAME][0]
    assert torch.equal(after[:, 0], torch.zeros_like(after[:, 0]))
    assert_close(after[:, 1], before[:, 1] / 4)
    assert_close(after[:, 2], before[:, 2].mean(0).expand_as(after[:, 2]))
    assert torch.equal(after[:, 3], before[:, 3])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("decoder.0.attention.0*", "must be a number"),
        ("decoder.0.attention.0*nan", "must be a number"),
        ("decoder.0.attention.0*1e9", "between −100 and 100"),
        ("decoder.0.attention.9*2", "is not there"),
        ("decoder.0.cross.0=mean", "is not in this model"),
        ("decoder.0.attention.0=median", "is not in this model"),
    ],
)
def test_what_cannot_be_changed(word: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        change_named(build(cases.decoder()), word)
