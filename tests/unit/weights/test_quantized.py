"""Weights that are kept small: nothing is off by more than half a step, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.blocks.settings import Attention
from regard.errors import WeightsError
from regard.models.settings import Classification, Decoder, EncoderDecoder, Vision
from regard.weights.directory import load, save
from regard.weights.files import write_tensors
from regard.weights.quantized import packed, quantize, unpacked

SETTINGS = EncoderDecoder(vocabulary=300, width=64, depth=2, attention=Attention(heads=4, bias=False))


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return regard.build(SETTINGS).eval()


@pytest.mark.parametrize("shape", [(7, 300), (64, 1), (5, 3, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_number_is_off_by_more_than_half_a_step(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape, dtype=torch.float64).exp().mul(torch.randn(shape).sign()).to(dtype)
    tensor[0] *= 1e4
    found = quantize(tensor)
    assert found.values.dtype == torch.int8
    assert found.values.shape == tensor.shape
    assert found.values.abs().max() == 127
    step = tensor.double().abs().flatten(1).amax(1) / 127  # worked out here, not taken from what is tested
    error = (found.tensor().double() - tensor.double()).abs().flatten(1)
    assert bool((error <= step[:, None] * 0.500001).all())


def test_rows_of_zeros_and_of_one_number() -> None:
    tensor = torch.zeros(3, 4)
    tensor[1] = -2.5
    found = quantize(tensor).tensor()
    assert torch.equal(found[0], tensor[0])
    assert torch.allclose(found, tensor)


def test_a_quantised_model_says_about_the_same(model: torch.nn.Module, tmp_path: Path) -> None:
    save(model, tmp_path, "int8")
    back = load(tmp_path)
    assert {parameter.dtype for parameter in back.parameters()} == {torch.float32}
    source, target = torch.randint(300, (4, 9)), torch.randint(300, (4, 7))
    with torch.no_grad():
        ours, theirs = model(source, target), back(source, target)
    assert (ours - theirs).std() / ours.std() < 0.02
    assert not torch.equal(ours, theirs)
    assert back.source.tokens.weight is back.target.tokens.weight


def test_int8_takes_a_byte_a_weight(model: torch.nn.Module, tmp_path: Path) -> None:
    save(model, tmp_path, "int8")
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    numbers = sum(map(torch.Tensor.numel, matrices))
    expected = numbers + 4 * sum(map(len, matrices)) + 4 * sum(map(torch.Tensor.numel, vectors))
    stored = load_file(tmp_path / "weights.safetensors")
    assert sum(tensor.nbytes for tensor in stored.values()) == expected
    assert stored["source.tokens.weight"].dtype == torch.int8
    assert stored["source.tokens.weight.scale"].shape == (300,)
    assert "target.tokens.weight" not in stored


def test_bf16_takes_two_and_is_read_as_float32(model: torch.nn.Module, tmp_path: Path) -> None:
    save(model, tmp_path, "bf16")
    stored = load_file(tmp_path / "weights.safetensors")
    assert stored["encoder.0.ffn.up.weight"].dtype == torch.bfloat16
    assert stored["encoder.0.ffn.up.bias"].dtype == torch.float32
    back = load(tmp_path)
    for name, parameter in model.named_parameters():
        found = back.get_parameter(name)
        assert found.dtype == torch.float32
        assert torch.equal(found, parameter.bfloat16().float() if parameter.dim() > 1 else parameter)


def test_another_type_may_be_asked_for(model: torch.nn.Module, tmp_path: Path) -> None:
    save(model, tmp_path, "int8")
    assert {parameter.dtype for parameter in load(tmp_path, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "settings",
    [
        Decoder(vocabulary=100, width=32, depth=1, layer_scale=0.1, attention=Attention(heads=2)),
        Vision(width=32, depth=1, image=(8, 8), patch=4, heads={"label": Classification(classes=5)}),
    ],
)
def test_other_families(settings: Decoder | Vision, tmp_path: Path) -> None:
    model = regard.build(settings)
    save(model, tmp_path, "int8")
    back = load(tmp_path)
    for name, parameter in model.named_parameters():
        off = (back.get_parameter(name) - parameter).abs().max()
        assert off <= parameter.abs().max() / 254 * 1.00001


def test_damage_is_noticed(model: torch.nn.Module, tmp_path: Path) -> None:
    save(model, tmp_path, "int8")
    path = tmp_path / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="its checksum is not the one of what was written"):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "short", "half"])
def test_scales_that_do_not_fit(damage: str, model: torch.nn.Module, tmp_path: Path) -> None:
    stored = packed(dict(model.named_parameters()), "int8")
    name = "encoder.0.ffn.up.weight.scale"
    scale = stored.pop(name)
    if damage != "missing":
        stored[name] = scale[1:] if damage == "short" else scale.half()
    write_tensors(tmp_path / "weights.safetensors", stored)
    told = {"missing": "is missing", "short": r"is torch.float32 of shape \[255\]", "half": "is torch.float16"}[damage]
    with pytest.raises(WeightsError, match=rf"encoder.0.ffn.up.weight in x is int8, and {name}, .*256 rows, {told}"):
        unpacked(load_file(tmp_path / "weights.safetensors"), "x")


def test_further_tables_are_kept(model: torch.nn.Module, tmp_path: Path) -> None:
    save(model, tmp_path, "int8", {"task": {"kind": "translate"}})
    assert 'kind = "translate"' in (tmp_path / "config.toml").read_text()
    assert load(tmp_path).settings == SETTINGS
