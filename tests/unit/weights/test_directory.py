from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.blocks.settings import Attention, Dense, Learned
from regard.errors import InputError, RegardError, SettingsError, WeightsError
from regard.models.settings import Classification, Decoder, Encoder, EncoderDecoder, Masked, ModelSettings, Vision
from regard.weights.assign import assign, build_with
from regard.weights.directory import load, save
from regard.weights.load import load as load_any

FILES = ["checksums.json", "config.toml", "weights.safetensors"]
SMALL: dict[str, ModelSettings] = {
    "encoder-decoder": EncoderDecoder(width=16, depth=2, vocabulary=20, attention=Attention(heads=2)),
    "untied": EncoderDecoder(
        width=16, depth=1, vocabulary=20, target_vocabulary=15, tied=(), attention=Attention(heads=4, kv_heads=2)
    ),
    "encoder": Encoder(
        width=16,
        depth=1,
        vocabulary=20,
        segments=2,
        position=Learned(length=9),
        heads={"words": Masked(), "mood": Classification(classes=3)},
    ),
    "decoder": Decoder(width=16, depth=1, vocabulary=20, ffn=Dense(hidden=8, activation="gelu"), tied=True),
    "vision": Vision(width=16, depth=1, image=(8, 12), patch=4, heads={"classes": Classification(classes=5)}),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_comes_back_equal(name: str, tmp_path: Path) -> None:
    model = regard.build(SMALL[name])
    save(model, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES
    back = load_any(tmp_path / "run")
    assert back.settings == model.settings
    assert not back.training
    parameters = dict(back.named_parameters())
    assert list(parameters) == list(dict(model.named_parameters()))
    for key, parameter in model.named_parameters():
        assert torch.equal(parameters[key], parameter)
        assert parameters[key].requires_grad


def test_shared_matrices_stay_shared(tmp_path: Path) -> None:
    save(regard.build(SMALL["encoder-decoder"]), tmp_path)
    model = load(tmp_path)
    assert model.source.tokens.weight is model.target.tokens.weight
    before = model.output(torch.ones(1, 16))
    with torch.no_grad():
        model.source.tokens.weight.mul_(2)
    assert torch.allclose(model.output(torch.ones(1, 16)), 2 * before)


def test_the_type_of_numbers_is_kept_unless_asked(tmp_path: Path) -> None:
    save(regard.build(SMALL["decoder"], dtype=torch.bfloat16), tmp_path)
    assert {parameter.dtype for parameter in load(tmp_path).parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in load(tmp_path, dtype=torch.float64).parameters()} == {torch.float64}


def test_a_loaded_model_depends_on_no_file(tmp_path: Path) -> None:
    save(regard.build(SMALL["decoder"]), tmp_path)
    model = load_any(tmp_path)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with open(tmp_path / "weights.safetensors", "r+b") as file:
        file.write(bytes((tmp_path / "weights.safetensors").stat().st_size))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_weights_lie_in_order_whatever_they_came_from() -> None:
    tensors = tensors_of("decoder")
    model = build_with(SMALL["decoder"], tensors | {"decoder.0.ffn.up.weight": torch.randn(16, 8).mT})
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_overwriting_a_run(tmp_path: Path) -> None:
    save(regard.build(SMALL["decoder"]), tmp_path)
    save(regard.build(SMALL["vision"]), tmp_path)
    assert load(tmp_path).settings == SMALL["vision"]


# ---------------------------------------------------------------------------------------------------------- bad input


def tensors_of(name: str) -> dict[str, torch.Tensor]:
    return {key: parameter.detach() for key, parameter in regard.build(SMALL[name]).named_parameters()}


def test_missing_tensors_are_named() -> None:
    tensors = tensors_of("decoder")
    del tensors["decoder.0.ffn.up.weight"], tensors["decoder.0.ffn.up.bias"]
    with pytest.raises(
        WeightsError, match=r"lacks 2 tensors: decoder\.0\.ffn\.up\.weight, decoder\.0\.ffn\.up\.bias; "
    ):
        build_with(SMALL["decoder"], tensors)


def test_surplus_tensors_are_named_up_to_five() -> None:
    tensors = tensors_of("decoder") | {f"extra{i}": torch.zeros(1) for i in range(8)}
    with pytest.raises(WeightsError, match=r"has 8 tensors too many: extra0, .*, extra4 and 3 more; the settings"):
        build_with(SMALL["decoder"], tensors)


def test_wrong_shapes_are_named() -> None:
    tensors = tensors_of("decoder")
    tensors["embedding.tokens.weight"] = torch.zeros(21, 16)
    expected = (
        r"has 1 tensor of a wrong shape: embedding\.tokens\.weight is \[21, 16\] and must be \[20, 16\]; the sett"
    )
    with pytest.raises(WeightsError, match=expected):
        build_with(SMALL["decoder"], tensors)


def test_quantised_weights_are_refused() -> None:
    tensors = tensors_of("decoder")
    tensors["decoder.0.ffn.up.weight"] = tensors["decoder.0.ffn.up.weight"].to(torch.int8)
    with pytest.raises(
        WeightsError, match=r"decoder\.0\.ffn\.up\.weight in the weights is torch\.int8, .* unquantised"
    ):
        build_with(SMALL["decoder"], tensors)


def test_mixed_types_take_the_one_that_holds_all() -> None:
    tensors = {name: tensor.half() for name, tensor in tensors_of("decoder").items()}
    tensors["embedding.tokens.weight"] = tensors["embedding.tokens.weight"].bfloat16()
    assert {parameter.dtype for parameter in build_with(SMALL["decoder"], tensors).parameters()} == {torch.float32}


def test_assigning_nothing() -> None:
    with pytest.raises(WeightsError, match="lacks"):
        assign(regard.build(SMALL["vision"]), {}, "cpu", torch.float32)


def test_nan_in_a_run(tmp_path: Path) -> None:
    model = regard.build(SMALL["decoder"])
    with torch.no_grad():
        model.embedding.tokens.weight[3, 4] = float("nan")
    save(model, tmp_path)
    with pytest.raises(WeightsError, match=r"embedding\.tokens\.weight in .*weights\.safetensors has 1 of 320"):
        load_any(tmp_path)


def test_a_run_without_weights(tmp_path: Path) -> None:
    save(regard.build(SMALL["decoder"]), tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"has no weights\.safetensors, so it is no whole run directory"):
        load_any(tmp_path)


def test_a_run_with_an_unknown_setting(tmp_path: Path) -> None:
    save(regard.build(SMALL["decoder"]), tmp_path)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace("width = 16", "wdith = 16"))
    with pytest.raises(SettingsError, match=r"unknown setting model\.wdith \(did you mean width\?\)"):
        load_any(tmp_path)


def test_a_run_without_a_model_table(tmp_path: Path) -> None:
    save(regard.build(SMALL["decoder"]), tmp_path)
    (tmp_path / "config.toml").write_text("seed = 1\n")
    with pytest.raises(SettingsError, match=r"config\.toml has no \[model\] table"):
        load_any(tmp_path)


def test_a_module_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"Linear carries no settings; only models made by regard\.build"):
        save(nn.Linear(1, 1), tmp_path)


def test_nothing_to_load(tmp_path: Path) -> None:
    looked_for = r"config\.toml \(a run directory\) or config\.json \(a Hugging Face directory\)"
    with pytest.raises(WeightsError, match=rf"holds no model: it has no {looked_for}; give"):
        load_any(tmp_path)
    with pytest.raises(WeightsError, match=rf"does not exist; give a directory with {looked_for}"):
        load_any(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match=r"is a file, not a directory; give"):
        load_any(str(tmp_path / "file"))
    assert issubclass(WeightsError, RegardError)
    assert not issubclass(WeightsError, InputError)


def test_a_compiled_model_is_saved_like_any_other(tmp_path: Path) -> None:
    model = regard.build(SMALL["decoder"])
    save(torch.compile(model, backend="eager"), tmp_path)
    back = dict(load(tmp_path).named_parameters())
    assert list(back) == [name for name, _ in model.named_parameters()]
    assert all(torch.equal(back[name], parameter) for name, parameter in model.named_parameters())


def test_settings_that_are_no_text(tmp_path: Path) -> None:
    save(regard.build(SMALL["decoder"]), tmp_path)
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"config\.toml is not UTF-8 text; save the model again"):
        load(tmp_path)


def test_a_file_without_tensors() -> None:
    with pytest.raises(WeightsError, match=r"the weights lacks \d+ tensors"):
        build_with(SMALL["decoder"], {})
