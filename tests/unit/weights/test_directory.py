"""A model directory: a model comes back equal, damage is found, a run that has not finished is its checkpoint."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.blocks.settings import Attention, Dense, Learned
from regard.errors import InputError, SettingsError, WeightsError
from regard.models.settings import Classification, Decoder, Encoder, EncoderDecoder, Masked, ModelSettings, Vision
from regard.weights.checkpoints import write_checkpoint
from regard.weights.directory import load_labels, load_model, save_labels, save_model, write_weights
from regard.weights.tensors import build_with

FILES = ["checksums.json", "config.toml", "weights.safetensors"]
BODY: dict[str, Any] = {"width": 16, "depth": 1}
TEXT = BODY | {"vocabulary": 20}
HEADS = {"words": Masked(), "mood": Classification(classes=3)}
SMALL: dict[str, ModelSettings] = {
    "encoder-decoder": EncoderDecoder(**TEXT | {"depth": 2}, attention=Attention(heads=2)),
    "untied": EncoderDecoder(**TEXT, target_vocabulary=15, tied=(), attention=Attention(heads=4, kv_heads=2)),
    "encoder": Encoder(**TEXT, segments=2, position=Learned(length=9), heads=HEADS),
    "decoder": Decoder(**TEXT, ffn=Dense(hidden=8, activation="gelu"), tied=True),
    "vision": Vision(**BODY, image=(8, 12), patch=4, heads={"classes": Classification(classes=5)}),
}


def test_a_model_comes_back_equal(tmp_path: Path) -> None:
    for name, settings in SMALL.items():
        model = regard.build(settings)
        save_model(model, tmp_path / name)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == FILES
        back = load_model(tmp_path / name)
        assert back.settings == model.settings
        assert not back.training
        parameters = dict(back.named_parameters())
        assert list(parameters) == list(dict(model.named_parameters()))
        for key, parameter in model.named_parameters():
            assert torch.equal(parameters[key], parameter)
            assert parameters[key].requires_grad
    save_model(regard.build(SMALL["vision"]), tmp_path / "decoder")  # overwrites
    assert load_model(tmp_path / "decoder").settings == SMALL["vision"]
    compiled = regard.build(SMALL["decoder"])
    save_model(torch.compile(compiled, backend="eager"), tmp_path / "compiled")
    parameters = dict(load_model(tmp_path / "compiled").named_parameters())
    assert all(torch.equal(parameters[name], parameter) for name, parameter in compiled.named_parameters())


def test_shared_matrices_stay_shared(tmp_path: Path) -> None:
    save_model(regard.build(SMALL["encoder-decoder"]), tmp_path)
    model = load_model(tmp_path)
    assert model.source.tokens.weight is model.target.tokens.weight
    before = model.output(torch.ones(1, 16))
    with torch.no_grad():
        model.source.tokens.weight.mul_(2)
    assert torch.allclose(model.output(torch.ones(1, 16)), 2 * before)


def test_dtypes(tmp_path: Path) -> None:
    save_model(regard.build(SMALL["decoder"], dtype=torch.bfloat16), tmp_path)
    assert {parameter.dtype for parameter in load_model(tmp_path).parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in load_model(tmp_path, dtype=torch.float64).parameters()} == {torch.float64}
    tensors = {name: tensor.half() for name, tensor in tensors_of("decoder").items()}
    tensors["embedding.tokens.weight"] = tensors["embedding.tokens.weight"].bfloat16()
    tensors["decoder.0.ffn.up.weight"] = torch.randn(16, 8).half().mT
    model = build_with(SMALL["decoder"], tensors)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}  # it holds all values of both
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_a_loaded_model_depends_on_no_file(tmp_path: Path) -> None:
    save_model(regard.build(SMALL["decoder"]), tmp_path)
    model = load_model(tmp_path)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with open(tmp_path / "weights.safetensors", "r+b") as file:
        file.write(bytes((tmp_path / "weights.safetensors").stat().st_size))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def tensors_of(name: str) -> dict[str, torch.Tensor]:
    return {key: parameter.detach() for key, parameter in regard.build(SMALL[name]).named_parameters()}


def test_wrong_tensors_are_named() -> None:
    tensors = tensors_of("decoder")
    up = "decoder.0.ffn.up.weight"
    for changed, expected in (
        ({name: tensors[name] for name in tensors if ".ffn.up." not in name}, rf"lacks {up}, "),
        (tensors | {f"extra{i}": torch.zeros(1) for i in range(8)}, r"unexpected tensors: extra0, .*4 and 3 more; "),
        (tensors | {"embedding.tokens.weight": torch.zeros(21, 16)}, r"is \[21, 16\], expected \[20, 16\]"),
        (tensors | {up: tensors[up].to(torch.int8)}, rf"{up} in the weights is torch\.int8"),
    ):
        with pytest.raises(WeightsError, match=expected):
            build_with(SMALL["decoder"], changed)
    with pytest.raises(WeightsError, match="lacks"):
        build_with(SMALL["vision"], {}, "cpu", torch.float32)


def test_directories_that_cannot_be_loaded(tmp_path: Path) -> None:
    config, weights = tmp_path / "config.toml", tmp_path / "weights.safetensors"
    model = regard.build(SMALL["decoder"])
    with torch.no_grad():
        model.embedding.tokens.weight[3, 4] = float("nan")
    save_model(model, tmp_path)
    with pytest.raises(WeightsError, match=r"embedding\.tokens\.weight in .*weights\.safetensors contains 1 NaN"):
        load_model(tmp_path)
    text = config.read_text()
    config.write_text(text.replace("width = 16", "wdith = 16"))
    with pytest.raises(SettingsError, match=r"model\.wdith \(did you mean width\?\)"):
        load_model(tmp_path)
    config.write_text("seed = 1\n")
    with pytest.raises(SettingsError, match=r"config\.toml has no \[model\] table"):
        load_model(tmp_path)
    config.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"config\.toml is not UTF-8 text"):
        load_model(tmp_path)
    weights.unlink()
    config.write_text(text)
    with pytest.raises(WeightsError, match=r"has no weights\.safetensors and no intact checkpoint; train the model"):
        load_model(tmp_path)


def test_nothing_to_load(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, problem in (("", "contains no model"), ("nowhere", "does not exist"), ("file", "is a file")):
        with pytest.raises(WeightsError, match=rf"{problem}.*config\.toml .* or config\.json"):
            load_model(str(tmp_path / path))
    with pytest.raises(InputError, match="a Linear cannot be used"):
        save_model(nn.Linear(1, 1), tmp_path)


def filled(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(each, value) for name, each in tensors_of("decoder").items()}


def value(run: Path) -> float:
    """The value of all parameters of the loaded model."""
    [found] = {each for parameter in load_model(run).parameters() for each in parameter.unique().tolist()}
    return float(found)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_model(regard.build(SMALL["decoder"]), tmp_path)
    write_weights(tmp_path, filled(1))
    return tmp_path


def flip(path: Path, seed: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[random.Random(seed).randrange(len(content))] ^= 4
    path.write_bytes(content)


def message(run: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        load_model(run)
    return str(caught.value)


def test_the_remedy_names_the_newest_checkpoint_and_works(run: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(run, step, filled(step), {}, {})
    flip(run / "checkpoints" / "000003" / "state.safetensors")
    flip(run / "weights.safetensors")
    assert f"remove it to load the newest checkpoint ({run / 'checkpoints' / '000002'})" in message(run)
    (run / "weights.safetensors").unlink()
    assert value(run) == 2


def test_damaged_checksums(run: Path) -> None:
    for text, reason in (
        ("{", "checksums.json is damaged"),
        ('{"format": 1, "files": {}}', "checksums.json does not list weights.safetensors"),
        ('{"format": 3, "files": {}}', "checksums.json has format 3, and this version of regard reads format 1"),
    ):
        (run / "checksums.json").write_text(text)
        assert reason in message(run)
    (run / "checksums.json").unlink()
    assert value(run) == 1  # without a checksum the weights are loaded unchecked
    path = run / "config.toml"
    path.write_text(path.read_text().removeprefix("format = 1\n"))
    assert value(run) == 1


def test_a_kill_leaves_old_or_new_weights(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    rename, found = os.replace, []
    for at in range(1, 10):
        calls = 0

        def count(old: Path, new: Path) -> None:
            nonlocal calls
            calls += 1
            if calls == at:  # noqa: B023
                raise Killed
            rename(old, new)

        monkeypatch.setattr(os, "replace", count)
        try:
            write_weights(run, filled(at + 1))
            break
        except Killed:
            found.append(value(run))
    assert found == [1, 3]
    assert value(run) == 4
    assert json.loads((run / "checksums.json").read_text()).keys() == {"format", "files"}


def test_a_run_that_has_not_finished_is_its_newest_checkpoint(run: Path) -> None:
    (run / "weights.safetensors").unlink()
    (run / "checksums.json").unlink()
    write_checkpoint(run, 1, filled(1), {}, {})
    write_checkpoint(run, 2, filled(2), {}, {}, ema=filled(20))
    assert value(run) == 20
    flip(run / "checkpoints" / "000002" / "ema.safetensors")
    before = sorted(os.listdir(run / "checkpoints"))
    assert value(run) == 1
    assert sorted(os.listdir(run / "checkpoints")) == before  # reading changes nothing
    with pytest.raises(WeightsError, match="contains the checkpoints of a run; choose another directory"):
        save_model(regard.build(SMALL["decoder"]), run)
    write_weights(run, filled(7))
    assert value(run) == 7
    (run / "weights.safetensors").unlink()
    (run / "checkpoints" / "000001" / "state.json").unlink()
    assert "no intact checkpoint (000002: " in message(run)


def test_labels(tmp_path: Path) -> None:
    assert load_labels(tmp_path) == {}
    labels = {"label": ("gut", "größer", "böse"), "tags": ("O", "B-PER")}
    save_labels(labels, tmp_path)
    assert load_labels(tmp_path) == labels
    assert "größer" in (tmp_path / "labels.json").read_text(encoding="utf-8")
    for text, expected in (
        ('{"label": "a"}', "label in .* must be a list of different names"),
        ('{"tags": [1]}', "tags in .* must be a list of different names"),
        ('{"label": ["a", "b", "a"]}', "label in .* must be a list of different names"),
        ('{"lable": ["a"]}', "unknown key lable"),
        ("{", "is not valid JSON"),
    ):
        (tmp_path / "labels.json").write_text(text)
        with pytest.raises(WeightsError, match=expected):
            load_labels(tmp_path)
