"""How weights start: the deviations that the settings state, for every parameter of every family, and none left out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import family_cases as cases
import pytest
import torch
from torch import Tensor, nn

from regard.blocks import settings as blocks
from regard.blocks.layers import RmsNorm
from regard.models.build import build

WIDE = {"width": 64, "attention": blocks.Attention(heads=4)}
by_family = pytest.mark.parametrize("family", cases.FAMILIES)


def wide(family: str, **changes: object) -> nn.Module:
    extra = {} if family == "vision" else {"vocabulary": 300}
    return build(cases.FAMILIES[family]().model_copy(update={**WIDE, **extra, **changes}))


def has_deviation(values: Tensor, deviation: float) -> bool:
    """Whether a sample's root mean square is that, within five times its own standard error (normal values)."""
    found = values.detach().double().square().mean().sqrt().item()
    return abs(found / deviation - 1) < 5 / math.sqrt(2 * values.numel())


def parameters_by_kind(model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter]]:
    """Kind, name and parameter: a `matrix` multiplies, a `table` is looked up, a `bias` or a `scale` of a norm."""
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        last = name.rpartition(".")[2]
        if isinstance(owner, nn.LayerNorm | RmsNorm) and last == "weight":
            yield "scale", name, parameter
        elif last in ("bias", "content", "distance"):
            yield "bias", name, parameter
        elif isinstance(owner, nn.Embedding) or ".position." in name or last == "class_token":
            yield "table", name, parameter
        else:
            yield "matrix", name, parameter


@by_family
@pytest.mark.parametrize("initial", [blocks.Xavier(), blocks.Normal(deviation=0.05)], ids=lambda i: i.kind)
def test_norms_start_at_one_and_biases_at_zero(family: str, initial: blocks.Initial) -> None:
    for kind, name, parameter in parameters_by_kind(wide(family, initial=initial)):
        assert torch.isfinite(parameter).all(), name
        if kind in ("scale", "bias"):
            assert torch.equal(parameter, torch.full_like(parameter, float(kind == "scale"))), name
        else:
            assert parameter.detach().std() > 0, name


@by_family
def test_deviations(family: str) -> None:
    """Xavier: uniform in ±√(6 / (inputs + outputs)); tables normal with variance 1 / width. Normal: as given."""
    for kind, name, parameter in parameters_by_kind(wide(family)):
        if kind == "matrix":
            outputs, inputs = parameter.shape[0], parameter[0].numel()
            bound = math.sqrt(6 / (inputs + outputs))
            assert parameter.abs().max() <= bound, name
            assert parameter.abs().max() > bound * (1 - 10 / parameter.numel()), name
            assert has_deviation(parameter, bound / math.sqrt(3)), name
        elif kind == "table":
            assert has_deviation(parameter, 1 / math.sqrt(64)), name
    for kind, name, parameter in parameters_by_kind(wide(family, initial=blocks.Normal(deviation=0.05))):
        if kind in ("matrix", "table"):
            assert has_deviation(parameter, 0.05), name


def test_positions_of_a_text_are_initialised() -> None:
    for position, name, expected in (
        ("learned", "embedding.position.weight", "table"),
        ("relative", "decoder.position.weight", "table"),
        ("transformer-xl", "decoder.0.attention.relative.project.weight", "matrix"),
    ):
        model = wide("decoder", position=cases.TEXT_POSITIONS[position])
        found = {name: (kind, parameter) for kind, name, parameter in parameters_by_kind(model)}
        kind, parameter = found[name]
        assert kind == expected
        assert has_deviation(parameter, 1 / math.sqrt(64))  # a 64 × 64 matrix after Xavier: √(6 / 128) / √3, the same
    assert not found["decoder.0.attention.relative.content"][1].any()


@pytest.mark.parametrize(
    ("family", "stack", "sublayers"),
    [
        ("decoder", "decoder", 4),
        ("encoder", "encoder", 4),
        ("vision", "encoder", 4),
        ("encoder-decoder", "encoder", 4),
        ("encoder-decoder", "decoder", 9),
    ],
)
def test_a_scaled_residual_is_divided_by_the_root_of_its_sublayers(family: str, stack: str, sublayers: int) -> None:
    """GPT-2: so the sum of all that a stack adds keeps its size. A layer with cross-attention has three sublayers."""
    changes = {"decoder_depth": 3} if family == "encoder-decoder" else {}
    model = wide(family, initial=blocks.Normal(deviation=0.05, scaled_residual=True), **changes)
    added = 0
    for kind, name, parameter in parameters_by_kind(getattr(model, stack)):
        if name.endswith(("out.weight", "down.weight")):
            added += 1
            assert has_deviation(parameter, 0.05 / math.sqrt(sublayers)), name
        elif kind == "matrix":
            assert has_deviation(parameter, 0.05), name
    assert added == sublayers


def test_layer_scale_starts_at_its_value() -> None:
    model = wide("encoder", layer_scale=0.3)
    scales = [p for name, p in model.named_parameters() if name.endswith("residual.scale")]
    assert len(scales) == 4
    assert all(torch.equal(scale, torch.full((64,), 0.3)) for scale in scales)
