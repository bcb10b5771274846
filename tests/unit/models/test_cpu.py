"""Models prepared for a CPU: the same scores, the given model untouched, what is the same shared."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import family_cases as cases
import pytest
import torch
from typer.testing import CliRunner

from regard.blocks import settings as blocks
from regard.cli.app import app
from regard.errors import InputError
from regard.models import cpu as prepared_module
from regard.models.build import build
from regard.models.cpu import (
    KERNEL_CACHES,
    EightBitLinear,
    EightBitWeights,
    FourBitWeights,
    PackedLinear,
    can_pack,
    current_packed,
    is_prepared,
    is_watched,
    prepared,
)
from regard.models.settings import Decoder, EncoderDecoder

SMALL: dict[str, Any] = {"vocabulary": 50, "width": 32, "depth": 2}
GATED = {"ffn": blocks.Gated(hidden=40), "norm_place": "pre", "norm": blocks.RmsNorm()}
LLAMA = blocks.Attention(heads=4, kv_heads=2, bias=False, qk_norm=blocks.RmsNorm())
SETTINGS = {
    "paper": EncoderDecoder(**SMALL, attention=blocks.Attention(heads=4, bias=False)),
    "t5": EncoderDecoder(
        **SMALL | GATED, attention=blocks.Attention(heads=4, scale=0.3), position=blocks.Relative(), output_scale=0.2
    ),
    "untied": EncoderDecoder(**SMALL, target_vocabulary=60, tied=(), output_bias=True),
    "gpt": Decoder(**SMALL, position=blocks.Learned(length=16), norm_place="pre"),
    "llama": Decoder(**SMALL | GATED, attention=LLAMA, position=blocks.Rotary()),
    "xl": Decoder(**SMALL, position=blocks.TransformerXL()),
    "gemma": Decoder(**SMALL | GATED, attention=LLAMA, position=blocks.Rotary(), output_soft_cap=1.5),
}


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return cases.unsettled(build(SETTINGS[name])).eval()


def answer(model: torch.nn.Module) -> torch.Tensor:
    tokens = torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    return model(tokens, tokens[:, :5]) if model.settings.kind == "encoder-decoder" else model(tokens)


@pytest.mark.parametrize("name", SETTINGS)
@torch.inference_mode()
def test_the_same_scores(name: str) -> None:
    model = made(name)
    exact = answer(made(name).double())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    float32, int8 = prepared(model), prepared(model, "int8")
    assert type(float32) is type(model)
    scale = exact.abs().max()
    assert torch.allclose(answer(float32).double(), exact, atol=float(1e-5 * scale))
    gap = (answer(int8).double() - exact).square().mean().sqrt() / exact.std()
    assert 1e-6 < gap < 0.1
    int4 = prepared(model, "int4")
    gap = (answer(int4).double() - exact).square().mean().sqrt() / exact.std()
    assert 1e-3 < gap < 0.5
    assert is_prepared(float32)
    assert not is_prepared(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.allclose(answer(model).double(), exact, atol=float(1e-5 * scale))


def test_weights_of_4_bits_by_their_definition() -> None:
    """Each group of 32 weights has 16 steps: at most half a step of error, in any shape; then bfloat16 products."""
    generator = torch.Generator().manual_seed(0)
    for outputs, inputs in ((16, 32), (17, 40), (50, 64), (3, 100)):
        weight = torch.randn(outputs, inputs, generator=generator)
        weight[0] = 0.25  # a constant group has no steps
        bias = torch.randn(outputs, generator=generator)
        layer = FourBitWeights(weight, bias)
        missing = -inputs % 32
        got = layer(torch.eye(inputs).bfloat16().float()).mT - bias[:, None]  # the weights themselves
        for start in range(0, inputs, 32):
            group = torch.nn.functional.pad(weight, (0, missing))[:, start : start + 32]
            span = group.amax(1) - group.amin(1)
            error = (got[:, start : start + 32] - weight[:, start : start + 32]).abs().amax(1)
            assert (error <= span / 15 * 0.55 + group.abs().amax(1) / 100 + 1e-6).all()
        x = torch.randn(2, 3, inputs, generator=generator)
        wanted = x.bfloat16().double() @ got.double().mT + bias
        assert torch.allclose(layer(x).double(), wanted, atol=0.02 * float(wanted.abs().max()))
        assert torch.equal(layer(x)[1, 2], layer(x[1:, 2:])[0, 0])  # rows do not depend on each other


def test_weights_of_8_bits_by_their_definition() -> None:
    """Half a step of error, a step being 1/127 of the row's largest weight, and the rounding of bfloat16."""
    weight = torch.randn(9, 20, generator=torch.Generator().manual_seed(0))
    got = EightBitWeights(weight, None)(torch.eye(20)).mT
    largest = weight.abs().amax(1, keepdim=True)
    assert ((got - weight).abs() <= largest / 254 + 2**-7 * weight.abs()).all()
    decoder, translator = prepared(made("llama"), "int8"), prepared(made("paper"), "int8")
    assert any(type(module) is EightBitWeights for module in decoder.modules())
    assert any(type(module) is EightBitLinear for module in translator.modules())


def test_refusals() -> None:
    model = made("paper")
    with pytest.raises(InputError, match=r"numbers \(int2\)"):
        prepared(model, "int2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="already prepared"):
        prepared(prepared(model), "int8")
    with pytest.raises(InputError, match=r"in torch\.float64 on cpu cannot be prepared"):
        prepared(made("paper").double())
    with pytest.raises(InputError, match=r"training mode cannot be prepared; call model.eval\(\)"):
        prepared(made("paper").train())


def test_when_it_is_done_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("paper")
    assert can_pack(model)
    assert not can_pack(prepared(model))
    assert not can_pack(made("paper").double())
    assert not can_pack(made("paper").train())
    handle = model.decoder[0].cross.register_forward_pre_hook(lambda *_: None)
    assert is_watched(model)
    handle.remove()
    assert not is_watched(model)
    monkeypatch.setattr(prepared_module, "packs", lambda: False)
    assert not can_pack(model)
    assert prepared(model) is model


def permute_columns(weight: torch.Tensor) -> None:
    weight.data.copy_(weight.data[:, torch.randperm(weight.shape[1])])


WRITES = {
    "data": lambda weight: weight.data.mul_(2.0),
    "numpy": lambda weight: weight.detach().numpy().__setitem__((11, 4), 0.25),
    "sign of a row": lambda weight: weight.data[6].neg_(),
    "permuted columns": permute_columns,
    "smallest change": lambda weight: weight.data.view(torch.int32)[13, 17].add_(1),
}


def test_packed_weights_are_never_stale() -> None:
    """Also after writes that change neither address nor version."""
    for name, write in WRITES.items():
        for part in ("cross.out", "attention.q", "ffn.up"):
            model = made("paper")
            first = current_packed(model)
            assert current_packed(model) is first
            weight = model.decoder[1].get_submodule(part).weight
            write(weight)
            second = current_packed(model)
            assert second is not first, (name, part)
            assert torch.allclose(answer(second), answer(model), atol=1e-5)
    model = made("paper")
    current_packed(model)
    model.source.tokens.weight.data[5].zero_()  # tied with the output
    assert torch.allclose(answer(current_packed(model)), answer(model), atol=1e-5)
    model.load_state_dict(made("paper").state_dict())
    assert torch.allclose(answer(current_packed(model)), answer(made("paper")), atol=1e-5)


def test_packed_weights_are_freed_with_their_model() -> None:
    model = made("paper")
    current_packed(model)
    known = len(prepared_module._packed)
    del model
    gc.collect()
    assert len(prepared_module._packed) < known


@pytest.mark.parametrize("verb", ["translate", "evaluate"])
def test_commands_bound_kernel_caches(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("", encoding="utf-8")  # a model that cannot be loaded
    for name in KERNEL_CACHES:
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)
    assert CliRunner().invoke(app, [verb, str(tmp_path)], input="a").exit_code == 1
    assert {name: os.environ.get(name) for name in KERNEL_CACHES} == KERNEL_CACHES


# ------------------------------------------------------------------------------------------------------- linear layers


def weights(inputs: int, outputs: int, bias: bool, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator) * torch.rand(outputs, 1, generator=generator)
    return weight, torch.randn(outputs, generator=generator) if bias else None


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


def test_packed_is_linear() -> None:
    for shape in ((1, 24), (7, 24), (0, 24), (3, 5, 24), (200, 24)):
        for x in (torch.randn(shape), torch.randn(*shape[:-2], 24, shape[-2]).mT):
            weight, offset = weights(24, 40, bias=len(shape) == 2)
            out = PackedLinear(weight, offset)(x)
            assert out.shape == (*shape[:-1], 40)
            assert torch.allclose(out.double(), expected(x, weight, offset), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24), (200, 24)])
def test_eight_bits_err_by_no_more_than_their_rounding(shape: tuple[int, ...], bias: bool) -> None:
    weight, offset = weights(24, 40, bias)
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[-2] if len(shape) > 1 else 1)[:, None]
    layer = EightBitLinear(weight, offset)
    out = layer(x)
    assert out.shape == (*shape[:-1], 40)
    largest, heaviest = x.abs().amax(-1, keepdim=True).double(), weight.abs().amax(1).double()
    half_x, half_w = largest / layer.reach / 2, heaviest / 127 / 2
    sums = (
        x.abs().double().sum(-1, keepdim=True) * half_w + half_x * weight.abs().double().sum(1) + 24 * half_x * half_w
    )
    error = (out.double() - expected(x, weight, offset)).abs()
    assert bool((error <= sums * 1.001 + 1e-6).all())
    assert float(error.max()) > 0


def test_a_row_does_not_depend_on_the_others() -> None:
    weight, offset = weights(64, 33, True)
    layer = EightBitLinear(weight, offset)
    x = torch.randn(9, 64) * torch.logspace(-4, 4, 9)[:, None]
    assert torch.equal(layer(x)[4:5], layer(x[4:5]))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_numbers_do_not_overflow(sign: float) -> None:
    layer = EightBitLinear(torch.full((16, 2048), sign * 3.0), None)
    assert torch.allclose(layer(torch.full((2, 2048), 5.0)), torch.full((2, 16), sign * 2048 * 15.0), rtol=1e-5)
    assert torch.allclose(layer(torch.full((2, 2048), -5.0)), torch.full((2, 16), -sign * 2048 * 15.0), rtol=1e-5)


def test_zeros_stay_zero() -> None:
    weight, offset = weights(24, 40, True)
    assert offset is not None
    weight[3] = 0.0
    layer = EightBitLinear(weight, offset)
    assert torch.equal(layer(torch.zeros(2, 24)), offset.expand(2, -1))
    assert torch.equal(layer(torch.randn(5, 24))[:, 3], offset[3].expand(5))


def test_eight_bits_need_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_module, "packs", lambda: False)
    with pytest.raises(InputError, match=r'numbers \("int8"\) needs oneDNN'):
        EightBitLinear(torch.ones(2, 2), None)
