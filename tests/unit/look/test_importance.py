"""Ablation: on models in which it is known what each head does, since all others are cut off."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import regard
from regard.errors import InputError
from regard.look.addresses import Head, ablation, attentions_of, heads_of, mean_outputs
from regard.look.importance import Ablation
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7], [2, 2, 9, 4]])
ONE, OTHER = Head("decoder", 1, "attention", 2), Head("decoder", 0, "attention", 3)


def speaking(*heads: Head) -> Any:
    """A decoder in which only some heads reach the stream: the others' columns of the output matrix are zero."""
    model: Any = cases.unsettled(build(cases.decoder(norm_place="pre")))
    with torch.no_grad():
        for attention in attentions_of(model):
            module = model.get_submodule(attention)
            kept = [head.number for head in heads if head.attention == attention]
            for number in set(range(module.heads)) - set(kept):
                module.out.weight[:, number * module.value_size : (number + 1) * module.value_size] = 0
    return model


def distance(model: Any, before: Tensor) -> float:
    with torch.no_grad():
        return float((model(TOKENS) - before).abs().max())


def test_the_only_head_that_speaks_is_the_only_one_that_matters() -> None:
    model = speaking(ONE)
    plain = model(TOKENS).detach()
    trial = Ablation(model, lambda: distance(model, plain))
    assert trial.plain == 0
    first, *others = trial.each()
    assert first.head == ONE
    assert first.change == first.figure > 1e-3
    assert {one.change for one in others} == {0.0}
    assert sorted(one.head for one in (first, *others)) == sorted(heads_of(model))
    control = trial.control([ONE])
    assert control.change == 0
    assert len(control.drawn) == 7  # all there are, each once
    assert trial.control([OTHER], count=3).drawn == trial.control([OTHER], count=3).drawn
    assert trial.greedy(first.figure).heads == (ONE,)
    assert trial.smallest(first.figure, trial.heads).heads == (ONE,)


def test_two_heads_that_stand_in_for_each_other() -> None:
    """The figure is 1 only where nothing is said any more, so that no head does anything alone."""
    model = speaking(ONE, OTHER)
    with torch.no_grad(), regard.record(model, edit=ablation([ONE, OTHER])):
        silent = model(TOKENS)
    last = [0.0]

    def metric() -> float:
        last[0] = distance(model, silent)
        return float(last[0] < 1e-6)

    trial = Ablation(model, metric)
    assert {one.change for one in trial.each()} == {0.0}
    found = trial.smallest(1.0, trial.heads)
    assert (found.heads, found.reached, found.figure) == ((OTHER, ONE), True, 1.0)
    assert trial.greedy(1.0, guide=lambda: -last[0]) == found
    assert not trial.smallest(1.0, trial.heads, most=1).reached
    assert len(trial.greedy(2.0, most=3).heads) == 3  # never reached
    pairs = trial.control(found.heads, count=5)
    assert pairs.change == 0
    assert all(len(drawn) == 2 and not {*drawn} & {ONE, OTHER} for drawn in pairs.drawn)


def test_heads_that_were_not_needed_go_again() -> None:
    """A guide that takes a silent head first: in the end it is left out."""
    model = speaking(ONE)
    plain = model(TOKENS).detach()
    figures = []

    def metric() -> float:
        figures.append(distance(model, plain))
        return figures[-1]

    trial = Ablation(model, metric)
    wanted = trial.without([ONE])
    count = len(trial.heads)
    figures.clear()
    # In the first round, whichever has no effect is liked best; then the one that has.
    found = trial.greedy(wanted, guide=lambda: figures[-1] if len(figures) > count else -figures[-1])
    assert len(figures) > 2 * count - 1  # there was a second round
    assert (found.heads, found.reached) == ((ONE,), True)


def test_means_are_of_real_positions_and_stand_in_for_heads() -> None:
    model: Any = cases.unsettled(build(cases.encoder_decoder()))
    source, target = cases.padded(cases.sentences([5, 3])), cases.padded(cases.sentences([2, 4], seed=1))
    batch = (source.tokens, target.tokens, source.layout, target.layout)
    means = mean_outputs(model, lambda: model(*batch))
    assert list(means) == attentions_of(model)
    with torch.no_grad(), regard.record(model, "*.heads") as seen:
        model(*batch)
    for attention, laid in (("encoder.0.attention", source), ("decoder.1.cross", target)):
        rows = torch.cat(laid.take(seen[f"{attention}.heads"]))
        assert_close(means[attention], rows.mean(0))
    with torch.no_grad(), regard.record(model, "decoder.1.cross.heads", edit=ablation(heads_of(model), means)) as seen:
        model(*batch)
    assert_close(seen["decoder.1.cross.heads"][0, 0], means["decoder.1.cross"])


def test_addresses_in_every_family() -> None:
    for family, make in cases.FAMILIES.items():
        model = build(make())
        found = heads_of(model)
        assert len(found) == len(set(found)) == 4 * (6 if family == "encoder-decoder" else 2)
    assert str(ONE) == "decoder.1.attention.2"
    edits = ablation([ONE, ONE._replace(number=0), OTHER])
    assert {name: list(edit.heads) for name, edit in edits.items()} == {
        "decoder.1.attention.heads": [0, 2],
        "decoder.0.attention.heads": [3],
    }


def test_a_control_needs_other_heads() -> None:
    model = speaking(ONE)
    trial = Ablation(model, lambda: 0.0)
    for beside in ([], trial.heads[:5]):
        with pytest.raises(InputError, match="a control needs as many other heads as those beside it"):
            trial.control(beside)
