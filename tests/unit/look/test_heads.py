"""Addresses, changes and ablation of heads, on models in which the effect of each head is known."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import regard
from regard.errors import InputError
from regard.look import heads
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7], [2, 2, 9, 4]])
ONE, OTHER = heads.HeadAddress("decoder", 1, "attention", 2), heads.HeadAddress("decoder", 0, "attention", 3)


def test_addresses_in_every_family() -> None:
    for family, make in cases.FAMILIES.items():
        found = heads.heads_of(build(make()))
        assert len(found) == len(set(found)) == 4 * (6 if family == "encoder-decoder" else 2)
    edits = heads.ablation([ONE, ONE._replace(number=0), OTHER])
    chosen = {name: list(edit.heads) for name, edit in edits.items()}
    assert chosen == {"decoder.1.attention.heads": [0, 2], "decoder.0.attention.heads": [3]}


def test_changes_by_name() -> None:
    model: Any = cases.unsettled(build(cases.decoder()))
    for text in ("decoder.0.attention.0", "decoder.0.attention.1*0.25", "decoder.0.attention.2=mean"):
        assert str(heads.change_named(model, text)) == text
    for text, message in (
        ("decoder.0.attention.0*", "must be a number"),
        ("decoder.0.attention.0*nan", "must be a number"),
        ("decoder.0.attention.0*1e9", "from −100 to 100"),
        ("decoder.0.attention.9*2", "heads are 0 to 3"),
        ("decoder.0.attention.0=median", "is not in this model"),
    ):
        with pytest.raises(InputError, match=message):
            heads.change_named(model, text)


def speaking(*chosen: heads.HeadAddress) -> Any:
    """A decoder in which only some heads reach the residual stream: the others' output weights are zero."""
    model: Any = cases.unsettled(build(cases.decoder(norm_place="pre")))
    with torch.no_grad():
        for attention in heads.attentions_of(model):
            module = model.get_submodule(attention)
            kept = [head.number for head in chosen if head.attention == attention]
            for number in set(range(module.heads)) - set(kept):
                module.out.weight[:, number * module.value_size : (number + 1) * module.value_size] = 0
    return model


def distance(model: Any, before: Tensor) -> float:
    with torch.no_grad():
        return float((model(TOKENS) - before).abs().max())


def test_only_the_head_that_speaks_matters() -> None:
    model = speaking(ONE)
    plain = model(TOKENS).detach()
    trial = heads.Ablation(model, lambda: distance(model, plain))
    assert trial.plain == 0
    first, *others = trial.each()
    assert first.head == ONE
    assert first.change == first.value > 1e-3
    assert {one.change for one in others} == {0.0}
    control = trial.control([ONE])
    assert control.change == 0
    assert len(control.drawn) == 7, "all others, each once"
    assert trial.control([OTHER], count=3).drawn == trial.control([OTHER], count=3).drawn
    for wrong in ([], trial.heads[:5]):
        with pytest.raises(InputError, match=f"got {len(wrong)}"):
            trial.control(wrong)


def test_two_heads_that_replace_each_other() -> None:
    """The metric is 1 only without both, so no head has an effect alone."""
    model = speaking(ONE, OTHER)
    with torch.no_grad(), regard.record(model, edit=heads.ablation([ONE, OTHER])):
        silent = model(TOKENS)
    trial = heads.Ablation(model, lambda: float(distance(model, silent) < 1e-6))
    assert {one.change for one in trial.each()} == {0.0}
    assert trial.without([ONE, OTHER]) == 1.0
    pairs = trial.control([ONE, OTHER], count=5)
    assert pairs.change == 0
    assert all(len(drawn) == 2 and not {*drawn} & {ONE, OTHER} for drawn in pairs.drawn)


def test_means_leave_out_padding() -> None:
    model: Any = cases.unsettled(build(cases.encoder_decoder()))
    source, target = cases.padded(cases.sentences([5, 3])), cases.padded(cases.sentences([2, 4], seed=1))
    batch = (source.tokens, target.tokens, source.layout, target.layout)
    means = heads.mean_outputs(model, lambda: model(*batch))
    assert list(means) == heads.attentions_of(model)
    with torch.no_grad(), regard.record(model, "*.heads") as seen:
        model(*batch)
    for attention, laid in (("encoder.0.attention", source), ("decoder.1.cross", target)):
        assert_close(means[attention], torch.cat(laid.take(seen.calls(f"{attention}.heads")[0])).mean(0))
    with (
        torch.no_grad(),
        regard.record(model, "decoder.1.cross.heads", edit=heads.ablation(heads.heads_of(model), means)) as seen,
    ):
        model(*batch)
    assert_close(seen.calls("decoder.1.cross.heads")[0][0, 0], means["decoder.1.cross"])
