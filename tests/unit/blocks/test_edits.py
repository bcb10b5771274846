"""Edits: against models whose weights were changed by hand, and against sums worked out here."""

from __future__ import annotations

import copy
from typing import Any

import decoding_cases
import family_cases as cases
import pytest
import torch
from decoding_cases import ENDS
from torch import Tensor
from torch.testing import assert_close

import regard
from regard.blocks import settings as blocks
from regard.blocks.edits import Ablate, Force, Patch, Scale
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Rules
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7], [2, 2, 9, 4]])
SOURCE = torch.tensor([[4, 8, 1], [6, 3, 3]])


def fresh(family: str, **changes: Any) -> Any:
    return cases.unsettled(build(cases.FAMILIES[family](**changes)))


@torch.no_grad()
def edited(model: Any, edit: dict[str, Any], *patterns: str) -> tuple[Tensor, Any]:
    with regard.record(model, *patterns, edit=edit) as seen:
        out = model(SOURCE, TOKENS) if hasattr(model, "source") else model(TOKENS)
    return out, seen


def without_heads(model: Any, part: str, heads: list[int], factor: float = 0.0) -> Any:
    """The same model with columns of an output matrix scaled, which is all that a head can say."""
    changed = copy.deepcopy(model)
    attention = changed.get_submodule(part)
    with torch.no_grad():
        for head in heads:
            attention.out.weight[:, head * attention.value_size : (head + 1) * attention.value_size] *= factor
    return changed


@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("encoder-decoder", "decoder.1.cross"),
        ("encoder-decoder", "encoder.0.attention"),
        ("encoder", "encoder.1.attention"),
        ("decoder", "decoder.0.attention"),
    ],
)
def test_an_ablated_head_is_one_without_columns_in_the_output_matrix(family: str, part: str) -> None:
    model = fresh(family)
    plain, _ = edited(model, {f"{part}.out": lambda x: x})
    for heads, edit, factor in (([1, 3], Ablate([1, 3]), 0.0), ([2], Scale([2], 1.7), 1.7)):
        out, _ = edited(model, {f"{part}.heads": edit})
        wanted, _ = edited(without_heads(model, part, heads, factor), {f"{part}.out": lambda x: x})
        assert_close(out, wanted)
        assert (out - plain).abs().max() > 1e-3


def test_a_head_may_give_its_mean_instead() -> None:
    model, name = fresh("decoder"), "decoder.0.attention.heads"
    _, seen = edited(model, {name: lambda x: x}, name)
    mean = seen[name].mean((0, 1))
    _, after = edited(model, {name: Ablate([1], mean)}, name)
    assert_close(after[name][:, :, 1], mean[1].expand(2, 4, -1))
    assert torch.equal(after[name][:, :, [0, 2, 3]], seen[name][:, :, [0, 2, 3]])


def test_forced_weights_mix_the_values() -> None:
    """Uniform ones give the mean of the values; and what is recorded is what was used."""
    model, part = fresh("decoder"), "decoder.1.attention"
    names = [f"{part}.{name}" for name in ("weights", "v", "heads")]
    _, seen = edited(model, {f"{part}.weights": Force(torch.full((4, 4), 0.25), heads=[2])}, *names)
    weights, v, heads = (seen[name] for name in names)
    assert_close(weights[:, 2], torch.full((2, 4, 4), 0.25))
    assert_close(heads[:, :, 2], v[:, :, 1].mean(1, keepdim=True).expand(-1, 4, -1), rtol=0, atol=1e-6)
    _, plain = edited(model, {f"{part}.out": lambda x: x}, *names)
    others = [0, 1, 3]
    assert_close(heads[:, :, others], plain[names[2]][:, :, others], rtol=0, atol=1e-5)


def test_edited_scores_go_through_the_softmax() -> None:
    model, part = fresh("decoder", position=blocks.Alibi()), "decoder.0.attention"
    names = [f"{part}.{name}" for name in ("scores", "weights", "v", "heads")]
    _, seen = edited(model, {names[0]: lambda x: 3 * x}, *names)
    scores, weights, v, heads = (seen[name] for name in names)
    _, plain = edited(model, {f"{part}.out": lambda x: x}, *names)
    assert_close(scores, 3 * plain[names[0]])
    assert_close(weights, scores.softmax(-1))
    wanted = weights @ v.transpose(1, 2).repeat_interleave(2, 1)
    assert_close(heads, wanted.transpose(1, 2), rtol=0, atol=1e-6)


def test_a_patched_stream_carries_another_input() -> None:
    """Everything after the patch is that of the other input where all is patched, and ours where nothing is."""
    model, name = fresh("encoder"), "encoder.0.residual"
    other = torch.tensor([[8, 1, 1, 2], [3, 5, 7, 0]])
    with torch.no_grad(), regard.record(model, name) as seen:
        theirs = model(other)
    ours = model(TOKENS).detach()
    out, _ = edited(model, {name: Patch(seen[name])})
    assert_close(out, theirs)
    out, kept = edited(model, {name: Patch(seen[name], positions=[1, 3])}, name, "encoder.1.residual")
    assert_close(kept[name][:, [1, 3]], seen[name][:, [1, 3]])
    assert (out - ours).abs().max() > 1e-3
    assert (out - theirs).abs().max() > 1e-3


def test_positions_of_another_length_and_of_packed_batches() -> None:
    model, name = fresh("decoder"), "decoder.0.residual"
    with torch.no_grad(), regard.record(model, name) as seen:
        model(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
    _, kept = edited(model, {name: Patch(seen[name], positions=[0], taken=[6])}, name)
    assert_close(kept[name][:, 0], seen[name][:, 6].expand(2, -1))
    (laid,) = cases.packed(cases.sentences([3, 5]), widths=[None])
    with torch.no_grad(), regard.record(model, name, edit={name: Patch(seen[name][0], [4], [1])}) as packed:
        model(laid.tokens, laid.layout)
    assert_close(packed[name][4], seen[name][0, 1])


def test_an_edit_that_writes_in_place_changes_nothing_else() -> None:
    """What attention reads is in a post-norm model the stream itself."""
    model = fresh("decoder")
    part = "decoder.1.attention"
    _, seen = edited(model, {f"{part}.input": lambda x: x.zero_()}, f"{part}.input", "decoder.0.residual")
    assert not seen[f"{part}.input"].any()
    assert seen["decoder.0.residual"].any()


def test_gradients_flow_through_what_is_recorded() -> None:
    """The gradient of a recorded weight is the slope of the output when it is changed."""
    model = fresh("decoder").double()
    name = "decoder.0.attention.weights"
    with regard.record(model, name, "embedding.tokens", grad=True) as seen:
        out = model(TOKENS).square().sum()
    weight, tokens = seen[name], seen["embedding.tokens"]
    slope, of_tokens = torch.autograd.grad(out, [weight, tokens])
    assert of_tokens.shape == (2, 4, 16)
    step = torch.zeros_like(weight)
    step[1, 2, 3, 1] = 1e-5
    ends = []
    for sign in (1, -1):
        with torch.no_grad(), regard.record(model, edit={name: lambda x, sign=sign: x + sign * step}):
            ends.append(model(TOKENS).square().sum())
    assert_close((ends[0] - ends[1]) / 2e-5, slope[1, 2, 3, 1], rtol=1e-6, atol=1e-6)


def test_gradients_flow_through_edits() -> None:
    model = fresh("decoder")
    mean, stream = torch.randn(4, 4, requires_grad=True), torch.randn(1, 4, 16, requires_grad=True)
    forced = torch.rand(4, 4, requires_grad=True)
    edits = {
        "decoder.0.attention.heads": Ablate([1], mean),
        "decoder.0.residual": Patch(stream, [2]),
        "decoder.1.attention.weights": Force(forced, [0]),
    }
    with regard.record(model, edit=edits):
        model(TOKENS).square().sum().backward()
    assert [bool(x.grad.any()) for x in (mean, stream, forced)] == [True, True, True]
    assert not mean.grad[[0, 2, 3]].any()
    assert not stream.grad[:, [0, 1, 3]].any()


def test_an_edit_reaches_every_step_of_decoding() -> None:
    """As the model whose matrix was changed writes."""
    model, given = decoding_cases.translator(dtype=torch.float32), decoding_cases.inputs(6)
    rules = Rules(longest=Absolute(tokens=8))
    with regard.record(model, edit={"decoder.0.cross.heads": Ablate([0])}):
        found = decode(model, given, ENDS, Beam(size=2), rules)
    wanted = decode(without_heads(model, "decoder.0.cross", [0]), given, ENDS, Beam(size=2), rules)
    plain = decode(model, given, ENDS, Beam(size=2), rules)
    assert [row[0].tokens for row in found] == [row[0].tokens for row in wanted]
    assert [row[0].tokens for row in found] != [row[0].tokens for row in plain]
    assert [row[0].score for row in found] == pytest.approx([row[0].score for row in wanted], abs=1e-4)


def test_edits_that_do_not_fit_raise() -> None:
    ones = torch.ones(2, 4, 16)
    cases: list[tuple[str, Any, str]] = [
        ("decoder.0.attention.heads", Ablate([4]), "head 4 of decoder.0.attention.heads"),
        ("decoder.0.attention.weights", Force(torch.ones(4), [-1]), "head -1"),
        ("decoder.0.attention.weights", Ablate([1]), "write decoder.0.attention.heads"),
        ("decoder.0.attention.heads", Force(torch.ones(4)), "write decoder.0.attention.weights"),
        ("decoder.0.attention.weights", Force(torch.ones(5, 5)), "weights has shape [5, 5]"),
        ("decoder.0.attention.heads", Ablate([1], torch.ones(4)), "mean has shape [4], expected [4, 4]"),
        ("decoder.0.residual", Patch(ones, [4]), "position 4 of decoder.0.residual"),
        ("decoder.0.residual", Patch(ones, [1], [2, 3]), "taken ([2, 3]) and positions ([1])"),
        ("decoder.0.attention.scores", Patch(ones, [1]), "no token dimension"),
        ("decoder.0.residual", Patch(torch.ones(3, 4, 16)), "value has shape [3, 4, 16]"),
        ("decoder.0.residual", lambda x: x[:1], "returned [1, 4, 16]"),
        ("decoder.0.residual", lambda x: None, "returned NoneType"),
        ("decoder.0.residual", 3, "edit of decoder.0.residual (3)"),
    ]
    for name, edit, message in cases:
        with pytest.raises(regard.InputError) as caught:
            edited(fresh("decoder"), {name: edit})
        assert message in str(caught.value)
