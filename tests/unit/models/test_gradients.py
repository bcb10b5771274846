"""Gradients of whole models against finite differences in float64: every parameter of a tiny model of each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import family_cases as cases
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from regard.blocks import settings as blocks
from regard.models.build import build
from regard.models.settings import Classification, Decoder, Encoder, EncoderDecoder, Masked, Vision

pytestmark = pytest.mark.slow  # together they take half a minute

TINY = {
    "width": 4,
    "depth": 1,
    "attention": blocks.Attention(heads=2, kv_heads=1, qk_norm=blocks.RmsNorm()),
    "ffn": blocks.Gated(hidden=3, activation="gelu"),
    "norm": blocks.RmsNorm(eps=1e-3),
    "norm_place": "pre",
    "layer_scale": 0.7,
    "dropout": 0.0,
}
TEXT = {**TINY, "vocabulary": 5}


def check(model: Any, answer: Callable[[], Tensor]) -> None:
    """`answer` calls the model; its sum with random weights is differentiated by every parameter at once."""
    model = cases.unsettled(model)
    names, parameters = zip(*model.named_parameters(), strict=True)
    weights = torch.randn_like(answer())

    class Answer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return (answer() * weights).sum()

    whole = Answer()

    def loss(*values: Tensor) -> Tensor:
        return functional_call(whole, {f"model.{name}": value for name, value in zip(names, values, strict=True)}, ())

    points = tuple(p.detach().clone().requires_grad_() for p in parameters)
    assert torch.autograd.gradcheck(loss, points, eps=1e-6, atol=1e-6, rtol=1e-5)
    # Nothing is left out, but a key's bias: without norms and rotations it adds the same to all scores of a query.
    gradients = dict(zip(names, torch.autograd.grad(loss(*points), points), strict=True))
    assert [name for name, g in gradients.items() if not g.any() and not name.endswith(".k.bias")] == []


@pytest.mark.parametrize(
    ("position", "layout"), [("learned", "ragged"), ("relative", "packed"), ("transformer-xl", "packed")]
)
def test_encoder_decoder(layout: str, position: str) -> None:
    model = build(EncoderDecoder(**TEXT, position=cases.TEXT_POSITIONS[position]), dtype=torch.float64)
    sources, targets = [[1, 2, 0], [4]], [[3, 1], [2, 4, 0]]
    if layout == "packed":
        source, target = cases.packed(sources, targets, widths=[5, 4])
    else:
        source, target = cases.padded(sources), cases.padded(targets)
    check(model, lambda: model(source.tokens, target.tokens, source.layout, target.layout))


@pytest.mark.parametrize("place", ["post", "sandwich"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_encoder_with_heads(place: str, pooling: str) -> None:
    heads = {"masked": Masked(), "class": Classification(classes=3, pooling=pooling, dense=True)}
    chosen = {**TEXT, "norm": blocks.LayerNorm(), "norm_place": place, "ffn": blocks.Dense(hidden=3, activation="silu")}
    settings = Encoder(**chosen, segments=2, embedding_norm=True, embedding_scale=True, heads=heads)
    model = build(settings, dtype=torch.float64)
    text = cases.padded([[1, 2, 0], [4]])

    def answer() -> Tensor:
        hidden = model(text.tokens, text.layout, segments=text.tokens % 2)
        return torch.cat([head(hidden, text.layout).flatten() for head in model.heads.values()])

    check(model, answer)


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_decoder_with_a_window(position: str) -> None:
    attention = blocks.Attention(heads=2, window=2, value_size=3)
    settings = Decoder(**{**TEXT, "attention": attention}, position=cases.TEXT_POSITIONS[position])
    model = build(settings, dtype=torch.float64)
    text = cases.padded([[1, 2, 0, 3], [4]])
    check(model, lambda: model(text.tokens, text.layout))


def test_decoder_with_a_soft_cap() -> None:
    attention = blocks.Attention(heads=2, soft_cap=2.0)
    model = build(Decoder(**{**TEXT, "attention": attention, "tied": False}), dtype=torch.float64)
    check(model, lambda: model(torch.tensor([[1, 2, 0, 3], [4, 4, 1, 0]])))


@pytest.mark.parametrize("position", cases.IMAGE_POSITIONS)
def test_vision(position: str) -> None:
    """Of another size than the settings', so that learned positions are resized."""
    heads = {"class": Classification(classes=3)}
    attention = blocks.Attention(heads=2, head_size=4)
    chosen = {**TINY, "attention": attention, "image": (4, 4), "patch": 2, "channels": 1, "heads": heads}
    model = build(Vision(**chosen, position=cases.IMAGE_POSITIONS[position]), dtype=torch.float64)
    images = torch.randn(1, 1, 4, 6, dtype=torch.float64)
    check(model, lambda: model.heads["class"](model(images)))
