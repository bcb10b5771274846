"""Recomputing layers in the backward pass: the same numbers, with less kept in between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import family_cases as cases
import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from regard.blocks import layers as stacks
from regard.blocks import settings as blocks
from regard.blocks.layers import set_recompute
from regard.models.build import build

RANDOM = {
    "dropout": 0.3,
    "stochastic_depth": 0.4,
    "attention": blocks.Attention(heads=4, kv_heads=2, dropout=0.2),
    "ffn": blocks.Dense(hidden=24, activation="gelu", dropout=0.2),
}
"""Everything that draws numbers in training."""

Call = Callable[[nn.Module], Tensor]


def training(family: str, **changes: Any) -> nn.Module:
    settings = cases.FAMILIES[family](**{**RANDOM, **changes})
    return cases.unsettled(build(settings, dtype=torch.float64)).train()


def calls(layout: str) -> dict[str, Call]:
    """The loss of each family, over a batch that is padded or packed."""
    sources, targets = cases.sentences([2, 6, 4, 1], 1), cases.sentences([5, 1, 7, 3], 2)
    if layout == "packed":
        source, target = cases.packed(sources, targets, widths=[9, 11])
    else:
        source, target = cases.padded(sources), cases.padded(targets)
    images = torch.randn(3, 2, 8, 12, dtype=torch.float64)
    return {
        "encoder-decoder": lambda model: model(source.tokens, target.tokens, source.layout, target.layout),
        "encoder": lambda model: model.heads["masked"](model(target.tokens, target.layout)),
        "decoder": lambda model: model(target.tokens, target.layout),
        "vision": lambda model: model.heads["class"](model(images)),
    }


def step(model: nn.Module, call: Call) -> tuple[Tensor, dict[str, Tensor], int, Tensor]:
    """Scores, gradients, how many tensors autograd kept, and what the random state gives afterwards."""
    model.zero_grad()
    torch.manual_seed(3)
    kept: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = call(model)
        loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return out.detach(), gradients, len(kept), torch.rand(3)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_same_numbers_bit_for_bit(family: str, layout: str) -> None:
    """With dropout, attention dropout and stochastic depth on: what was drawn is drawn again."""
    model, call = training(family), calls(layout)[family]
    out, gradients, kept, drawn = step(model, call)
    set_recompute(model, True)
    out_again, gradients_again, kept_again, drawn_again = step(model, call)
    assert torch.equal(out_again, out)
    assert gradients
    assert gradients_again.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradients_again[name], gradient), name
    assert torch.equal(drawn_again, drawn), "the random state after a step must not depend on it"
    assert kept_again < kept / 4


@pytest.mark.parametrize("position", cases.TEXT_POSITIONS)
def test_every_kind_of_position(position: str) -> None:
    """Layers work out masks and tables of scores for each other, which a recomputed layer must not find there."""
    model, call = training("decoder", position=cases.TEXT_POSITIONS[position]), calls("packed")["decoder"]
    out, gradients, *_ = step(model, call)
    set_recompute(model, True)
    out_again, gradients_again, *_ = step(model, call)
    assert torch.equal(out_again, out)
    for name, gradient in gradients.items():
        if name == "decoder.position.weight":
            # Each layer adds its own share to T5's table, so the sum has another order.
            assert_close(gradients_again[name], gradient, rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(gradients_again[name], gradient), name


@pytest.mark.parametrize("case", ["training", "evaluation", "no gradients", "a cache"])
def test_only_training_recomputes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = build(cases.decoder()).train(case != "evaluation")
    set_recompute(model, True)
    used = []
    original = stacks.checkpoint
    monkeypatch.setattr(stacks, "checkpoint", lambda *given, **named: (used.append(case), original(*given, **named))[1])
    tokens = torch.tensor([[1, 2, 3]])
    with torch.set_grad_enabled(case != "no gradients"):
        model(tokens, cache=model.new_cache(1) if case == "a cache" else None)
    assert len(used) == (2 if case == "training" else 0)


@pytest.mark.slow
def test_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one graph, in which layers are computed twice too: the same numbers, and less kept."""
    # The compiler's diary: thousands of records, which pytest would keep.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    model = training("decoder", position=blocks.Relative(buckets=8, longest=12))
    call = calls("packed")["decoder"]
    out, gradients, kept, _ = step(model, call)
    torch._dynamo.reset()
    set_recompute(model, True)
    counter = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(model, fullgraph=True, backend=counter)
    out_again, gradients_again, kept_again, _ = step(model, lambda _: call(fast))
    torch._dynamo.reset()
    assert counter.frame_count == 1
    assert_close(out_again, out, rtol=1e-12, atol=1e-12)
    for name, gradient in gradients.items():
        assert_close(gradients_again[name], gradient, rtol=1e-12, atol=1e-12, msg=name)
    assert kept_again < kept


@pytest.mark.gpu
def test_a_gpu_needs_less_memory() -> None:
    """Eight layers keep eight inputs, and at any time the activations of one layer."""
    settings = cases.decoder().changed({"width": 256, "depth": 8, "ffn.hidden": 1024, "dropout": 0.1})
    model = build(settings, device="cuda").train()
    tokens = torch.randint(0, cases.VOCABULARY, (16, 512), device="cuda")
    peaks, gradients = {}, {}
    for on in (False, True):
        set_recompute(model, on)
        model.zero_grad()
        torch.manual_seed(0)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model(tokens).square().mean().backward()
        peaks[on] = torch.cuda.max_memory_allocated() - before
        gradients[on] = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert peaks[True] < peaks[False] / 2
    assert (gradients[True] - gradients[False]).norm() < 1e-4 * gradients[False].norm()
