"""Every model compiles whole (`fullgraph=True`) and equals its uncompiled self, forward and backward.

The backend is `aot_eager`: it traces and differentiates as any other does, and runs the graph without generating
code, which is the part that takes long. One model is also compiled by inductor.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import family_cases as cases
import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from regard.blocks import settings as blocks
from regard.blocks.layout import Packed, Padded
from regard.models.build import build
from regard.models.settings import ModelSettings

pytestmark = pytest.mark.slow  # together they take half a minute

LENGTHS, SOURCE_LENGTHS = [5, 1, 7, 3], [2, 6, 4, 1]


@pytest.fixture(autouse=True)
def _forget_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The compiler's diary: thousands of records, which pytest would keep.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def fresh(settings: ModelSettings, depth: int = 1) -> Any:
    deep = {"depth": depth, "decoder_depth": depth} if settings.kind == "encoder-decoder" else {"depth": depth}
    return cases.unsettled(build(settings.model_copy(update=deep)))


def compiled(call: Callable[..., Tensor], counter: CompileCounterWithBackend) -> Callable[..., Tensor]:
    return torch.compile(call, fullgraph=True, backend=counter)


def check(model: nn.Module, call: Callable[..., Tensor], *arguments: Any, backend: str = "aot_eager") -> None:
    """One compilation, and the same answers and gradients as without."""
    counter = CompileCounterWithBackend(backend)
    results = []
    for function in (call, compiled(call, counter)):
        model.zero_grad()
        torch.manual_seed(0)
        out = function(*arguments)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        results.append((out.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (out, gradients), (again, gradients_again) = results
    assert counter.frame_count == 1
    assert_close(again, out, rtol=1e-5, atol=1e-5)
    assert gradients
    assert gradients_again.keys() == gradients.keys()
    for name, gradient in gradients.items():
        scale = gradient.abs().max().item()
        assert_close(gradients_again[name], gradient, rtol=1e-4, atol=1e-5 * max(scale, 1.0), msg=name)


def laid(layout: str) -> list[cases.Laid]:
    """Source and target."""
    if layout == "full":
        return [cases.padded(cases.sentences([n] * 2, seed)) for n, seed in ((4, 1), (5, 2))]
    sources, targets = cases.sentences(SOURCE_LENGTHS, 1), cases.sentences(LENGTHS, 2)
    if layout == "packed":
        return cases.packed(sources, targets, widths=[9, 11])
    return [cases.padded(sources), cases.padded(targets)]


@pytest.mark.parametrize(("position", "layout"), [("sinusoidal", "ragged"), ("relative", "packed")])
def test_encoder_decoder(position: str, layout: str) -> None:
    model = fresh(cases.encoder_decoder(position=cases.TEXT_POSITIONS[position]))
    source, target = laid(layout)
    check(model, model, source.tokens, target.tokens, source.layout, target.layout)


def test_encoder_with_all_its_heads() -> None:
    model = fresh(cases.encoder(position=cases.TEXT_POSITIONS["relative"]))
    text = laid("packed")[1]

    def heads(tokens: Tensor, layout: Any) -> Tensor:
        hidden = model(tokens, layout, segments=tokens % 2)
        return torch.cat([head(hidden, layout).flatten() for head in model.heads.values()])

    check(model, heads, text.tokens, text.layout)


@pytest.mark.parametrize(
    ("position", "layout"), [*((position, "packed") for position in cases.TEXT_POSITIONS), ("rotary", "ragged")]
)
def test_decoder(position: str, layout: str) -> None:
    model = fresh(cases.decoder(position=cases.TEXT_POSITIONS[position]))
    text = laid(layout)[1]
    check(model, model, text.tokens, text.layout)


def test_vision() -> None:
    """Images of two sizes; learned positions are resized for the second."""
    for position, size in (("learned-2d", (8, 12)), ("rotary-2d", (8, 12)), ("learned-2d", (12, 8))):
        torch._dynamo.reset()
        model = fresh(cases.vision(position=cases.IMAGE_POSITIONS[position]))
        check(model, lambda images, model=model: model.heads["class"](model(images)), torch.randn(2, 2, *size))


def test_several_layers_and_batches_without_padding() -> None:
    """Layers share what a visibility has worked out, which must not leave the graph."""
    _, target = laid("full")
    writer = fresh(cases.decoder(position=blocks.Relative()), depth=2)
    check(writer, writer, target.tokens)


def test_window_and_soft_cap() -> None:
    attention = blocks.Attention(heads=4, kv_heads=2, window=3, soft_cap=5.0, qk_norm=blocks.RmsNorm())
    model = fresh(cases.decoder(position=blocks.Rotary(), attention=attention, ffn=blocks.Gated()))
    text = laid("packed")[1]
    check(model, model, text.tokens, text.layout)


@pytest.mark.parametrize(("place", "layout"), [("pre", "ragged"), ("sandwich", "packed")])
def test_training_with_everything_that_is_random(place: str, layout: str) -> None:
    """From the same random state, a compiled model drops what an uncompiled one drops."""
    chosen = {
        "dropout": 0.2,
        "attention": blocks.Attention(heads=4, dropout=0.2),
        "stochastic_depth": 0.3,
        "layer_scale": 0.5,
        "norm": blocks.RmsNorm(unit_offset=True),
        "norm_place": place,
    }
    model = fresh(cases.decoder(position=blocks.Alibi(), **chosen), depth=2).train()
    text = laid(layout)[1]
    check(model, model, text.tokens, text.layout)


def test_batches_of_other_lengths_are_not_compiled_anew() -> None:
    """A packed batch has a fixed number of tokens and sequences, whatever their lengths: so has a padded one."""
    model, counter = fresh(cases.decoder(position=blocks.Rotary())), CompileCounterWithBackend("aot_eager")
    fast = compiled(model, counter)
    draw = random.Random(0)
    for _ in range(4):
        cuts = sorted(draw.randint(0, 24) for _ in range(7))
        layout = Packed(24, torch.tensor([0, *cuts, 24], dtype=torch.int32), longest=24)
        tokens = torch.randint(0, cases.VOCABULARY, (24,))
        assert_close(fast(tokens, layout), model(tokens, layout))
    assert counter.frame_count == 1
    for _ in range(4):
        padded = Padded.of(torch.tensor([draw.randint(0, 6) for _ in range(4)]), time=6)
        tokens = torch.randint(0, cases.VOCABULARY, (4, 6))
        assert_close(fast(tokens, padded), model(tokens, padded))
    assert counter.frame_count == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # its own imports
@pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")),
    reason="inductor needs a C++ compiler on the CPU, and there is none on the path",
)
def test_inductor_generates_the_same_model() -> None:
    model, text = fresh(cases.decoder(position=blocks.Rotary())), laid("packed")[1]
    check(model, model, text.tokens, text.layout, backend="inductor")
