"""Derived attention weights: they reproduce what the model did in every family and layout, or are not shown."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import regard
from regard.blocks import kernels
from regard.blocks import settings as blocks
from regard.blocks.layout import Packed
from regard.blocks.recording import Recording
from regard.blocks.visibility import Fused, Visibility
from regard.models.build import build
from regard.models.settings import ModelSettings

LENGTHS, SOURCE_LENGTHS = [5, 1, 7, 3], [2, 6, 4, 1]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"attention": blocks.Attention(heads=4)},
    "one key head, sizes apart": {"attention": blocks.Attention(heads=4, kv_heads=1, head_size=6, value_size=3)},
    "window": {"attention": blocks.Attention(heads=4, kv_heads=2, window=3)},
    "soft cap": {"attention": blocks.Attention(heads=4, soft_cap=0.7)},
    "norm and scale": {"attention": blocks.Attention(heads=2, qk_norm=blocks.RmsNorm(), scale=1.3)},
    "before": {"norm_place": "pre", "norm": blocks.RmsNorm(), "layer_scale": 0.4},
    "both sides": {"norm_place": "sandwich", "ffn": blocks.Gated(hidden=20)},
    "parallel, after": {"norm_place": "output", "parallel": True},
    "joint norm": {"attention": blocks.Attention(heads=2, qk_norm=blocks.RmsNorm(), qk_norm_joint=True)},
}
POSITIONS = {position: {"position": value} for position, value in cases.TEXT_POSITIONS.items()}


def fresh(settings: ModelSettings) -> Any:
    return cases.unsettled(build(settings))


def laid(layout: str) -> list[cases.Laid]:
    """Source and target."""
    sources, targets = cases.sentences(SOURCE_LENGTHS, 1), cases.sentences(LENGTHS, 2)
    if layout == "padded":
        return [cases.padded(sources), cases.padded(targets)]
    return cases.packed(sources, targets, widths=[9, 11] if layout == "rows" else [None, None])


@torch.no_grad()
def recorded(model: nn.Module, sides: list[cases.Laid], *patterns: str) -> Recording:
    with regard.record(model, *patterns) as seen:
        if hasattr(model, "source"):
            model(sides[0].tokens, sides[1].tokens, sides[0].layout, sides[1].layout)
        else:
            model(sides[1].tokens, sides[1].layout)
    return seen


def of_sequences(weights_RHQK: Tensor, queries: cases.Laid, keys: cases.Laid) -> list[Tensor]:
    """`[H, Q, K]` of each sequence; whatever is looked at elsewhere must be nothing."""
    found = []
    left = weights_RHQK.clone()
    for mine, theirs in zip(queries.cells, keys.cells, strict=True):
        row, first = place(mine[0], queries, weights_RHQK)
        _, start = place(theirs[0], keys, weights_RHQK)
        cut = (row, slice(None), slice(first, first + len(mine)), slice(start, start + len(theirs)))
        found.append(weights_RHQK[cut])
        left[cut] = 0
        assert not left[row, :, first : first + len(mine)].any()
    return found


def place(cell: tuple[int, ...], laid: cases.Laid, weights_RHQK: Tensor) -> tuple[int, int]:
    if isinstance(laid.layout, Packed):
        width = laid.layout.tokens // len(weights_RHQK)
        return cell[0] // width, cell[0] % width
    return cell[0], cell[1]


@pytest.mark.parametrize("changes", [*VARIANTS, *POSITIONS])
def test_layouts_agree(changes: str) -> None:
    """What a sequence looks at does not depend on what lies beside it."""
    model = fresh(cases.encoder_decoder(**(VARIANTS | POSITIONS)[changes]))
    found = []
    for layout in ("padded", "packed", "rows"):
        source, target = laid(layout)
        seen = recorded(model, [source, target], "decoder.1.*.weights")
        parts = of_sequences(seen["decoder.1.attention.weights"], target, target)
        found.append([*parts, *of_sequences(seen["decoder.1.cross.weights"], target, source)])
    sources, targets = cases.sentences(SOURCE_LENGTHS, 1), cases.sentences(LENGTHS, 2)
    alone = [
        recorded(model, [cases.padded([a]), cases.padded([b])], "decoder.1.*.weights")
        for a, b in zip(sources, targets, strict=True)
    ]
    each = [seen[f"decoder.1.{kind}.weights"][0] for kind in ("attention", "cross") for seen in alone]
    for parts in found:
        for weights, wanted in zip(parts, each, strict=True):
            assert_close(weights, wanted, rtol=0, atol=1e-5)


def test_scores_are_what_the_softmax_gets() -> None:
    model, sides = fresh(cases.decoder(position=blocks.Relative(buckets=8, longest=12))), laid("padded")
    seen = recorded(model, sides, "*.scores", "*.weights", "*.q", "*.k")
    scores, weights = seen["decoder.0.attention.scores"], seen["decoder.0.attention.weights"]
    assert torch.equal(scores == -torch.inf, weights == 0)
    assert_close(scores[0].softmax(-1)[:, :5], weights[0][:, :5])
    q_THE, k_TGE = (seen[f"decoder.0.attention.{name}"][2] for name in "qk")
    bias = scores[2, 3, 4, 1] - q_THE[4, 3] @ k_TGE[1, 1] / 2
    assert_close(bias, model.decoder.position.weight[3, 3].detach())  # a distance of 3 is bucket 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype) -> None:
    model, sides = fresh(cases.encoder_decoder()), laid("padded")
    exact = recorded(model.double(), sides, "*.weights")
    seen = recorded(model.to(dtype), sides, "*.weights")
    for name in exact:
        assert seen[name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert (seen[name] - exact[name]).abs().max() < 0.1
        assert_close(seen[name][0, :, 0].sum(-1), torch.ones(4, dtype=seen[name].dtype))


def test_autocast_rounds_the_model_and_not_the_weights() -> None:
    model, sides = fresh(cases.decoder()), laid("padded")
    with torch.autocast("cpu", torch.bfloat16):
        seen = recorded(model, sides, "*.weights")
    weights = seen["decoder.1.attention.weights"][0, :, :5]
    assert_close(weights.sum(-1), torch.ones(4, 5), rtol=0, atol=1e-6)


def refused(model: nn.Module, sides: list[cases.Laid]) -> str:
    with pytest.raises(regard.RecordError) as caught:
        recorded(model, sides, "*.weights")
    return str(caught.value)


def test_a_broken_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sides = fresh(cases.decoder()), laid("padded")
    monkeypatch.setattr(Visibility, "fused", lambda self, device: Fused(False, None, None))
    message = refused(model, sides)
    assert message.startswith("decoder.0.attention.weights cannot be derived")
    assert "use_backend" in message
    with torch.no_grad():
        model(sides[1].tokens, sides[1].layout)  # it runs as it did


@pytest.mark.parametrize("size", [0.999, torch.nan])
def test_a_kernel_that_gives_something_else_is_refused(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sides = fresh(cases.encoder_decoder()), laid("rows")
    monkeypatch.setitem(kernels._KERNELS, "sdpa", lambda *given: kernels.sdpa(*given) * size)
    assert refused(model, sides).startswith("encoder.0.attention.weights cannot be derived")


def test_dropout_on_weights_is_refused() -> None:
    model = fresh(cases.decoder(attention=blocks.Attention(heads=4, dropout=0.2))).train()
    assert refused(model, laid("padded")) == (
        "decoder.0.attention.weights is random while dropout (0.2) is on; call model.eval() first"
    )
