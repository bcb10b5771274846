"""`regard count`, `regard presets` and `regard convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_cases import CORPUS
from typer.testing import CliRunner

import regard
from regard.blocks.settings import Attention
from regard.cli.app import app
from regard.cli.models import read_model
from regard.errors import RunError, SettingsError
from regard.format import amount, difference, size
from regard.models.presets import preset, preset_names
from regard.models.settings import Decoder
from regard.training.report import Display
from regard.weights.directory import load_model, save_model
from regard.weights.huggingface.directory import write_pretrained

RECIPE = """
task = "translate"
[model]
preset = "transformer-tiny"
dropout = 0.2
[train]
tokens = 16_384
"""


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def counted(*arguments: str) -> Any:
    return json.loads(shown("count", *arguments, "--json"))


def test_count() -> None:
    text = shown("count", "gpt2")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["total"] == ["124,439,808"]
    assert rows["embedding.tokens"] == ["38,597,376", "31.0", "%"]
    assert "published: 124 M (openai/gpt-2" in text
    assert "published" not in shown("count", "gpt2", "depth=3"), "the published size belongs to the unchanged preset"
    for line in ("FLOPs per token, forward", "memory of weights", "memory to train", "cache per generated token"):
        assert line in text
    image = shown("count", "vit-b16")
    assert "FLOPs per image, forward" in image
    assert "cache" not in image
    tensors = shown("count", "llama-tiny", "--by", "tensor").splitlines()
    row = next(line for line in tensors if line.startswith("decoder.4.attention.k.weight"))
    assert row.split() == ["decoder.4.attention.k.weight", "32", "x", "64", "2,048"]


def test_count_as_json() -> None:
    result = counted("bert-base")
    assert result["parameters"] == sum(result["parts"].values()) == 109_482_240
    assert result["published"]["difference"] == 109_482_240 - 110_000_000
    assert result["flops"]["training"] == 3 * result["flops"]["forward"]
    assert result["memory"]["weights"] == 2 * 109_482_240
    assert (result["length"], result["batch"], result["dtype"]) == (512, 1, "bfloat16")
    assert result["settings"]["kind"] == "encoder"
    assert counted("gpt2", "--by", "tensor")["tensors"]["embedding.tokens.weight"] == [50_257, 768]
    result = counted("gpt2", "--length", "100", "--batch", "8", "--dtype", "float32")
    assert (result["length"], result["batch"], result["memory"]["weights"]) == (100, 8, 4 * 124_439_808)


def test_models_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = preset("gpt2", attention={"kv_heads": 2}, position={"kind": "rotary"})
    for prefix in ("", "model."):
        words = ["gpt2", f"{prefix}attention.kv_heads=2", f"{prefix}position.kind=rotary"]
        assert read_model(words) == ("gpt2", expected, [])
    for name in ("recipe.toml", "gpt2"):
        Path(name).write_text(RECIPE, encoding="utf-8")
    planned = preset("transformer-tiny", dropout=0.2, vocabulary=8_000)
    assert read_model(["recipe.toml"])[1] == planned
    assert read_model(["recipe.toml", "model.depth=2"])[1] == planned.changed({"depth": 2})
    assert read_model(["gpt2"])[1] == preset("gpt2"), "a preset comes before a file of its name"
    with pytest.raises(SettingsError, match=r"model.attention.hedas \(did you mean heads\?\)"):
        read_model(["gpt2", "attention.hedas=3"])
    for words in (["gpt2", "bert-base"], ["depth=3"]):
        with pytest.raises(SettingsError, match="give one model"):
            read_model(words)


def test_what_a_recipe_trains_and_what_a_directory_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of a recipe is the size of its run, where the data fills the vocabulary."""
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("".join(f"{line}\n" for line in CORPUS), encoding="utf-8")
    model = 'model = { preset = "bert-tiny", width = 16, attention.heads = 2, ffn.hidden = 16 }\n'
    rest = 'data.train = ["train.txt"]\ntrain.steps = 1\ntext = { kind = "wordpiece", size = 150 }\n'
    Path("mine.toml").write_text(f'task = {{ kind = "masked", context = 16 }}\n{rest}{model}')
    planned = counted("mine.toml")
    assert planned["settings"]["vocabulary"] == 150
    assert "follows from the data; 150 tokens are counted" in planned["notes"][0]
    regard.train("mine.toml", display=Display(quiet=True), device="cpu")
    assert {"heads.pooler", "heads.masked"} <= planned["parts"].keys()
    network = load_model("runs/mine")
    for name in ("runs/mine", "mine.toml"):
        assert counted(name)["parameters"] == sum(x.numel() for x in network.parameters()), name
    assert counted("runs/mine", "depth=1")["parameters"] < planned["parameters"]
    write_pretrained(network, "theirs")
    assert counted("./theirs")["parameters"] == planned["parameters"] - planned["parts"]["heads.pooler"]
    assert counted("de-en")["parameters"] == 18_399_232
    expected = {"mnist": ["classes follows from the data; 2"], "grammar": ["follows from the data; 30,000"]}
    for name, notes in expected.items():
        assert len(counted(name)["notes"]) == len(notes)
        assert notes[0] in counted(name)["notes"][0]


def test_presets() -> None:
    lines = shown("presets").splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(preset_names())
    assert next(line for line in lines if line.startswith("gpt3 ")).rstrip().endswith("counted only")
    listing = {entry["name"]: entry for entry in json.loads(shown("presets", "--json"))}
    gpt2 = listing["gpt2"]
    assert (gpt2["parameters"], gpt2["published"], gpt2["kind"]) == (124_439_808, "124 M", "decoder")


def test_numbers_as_text() -> None:
    amounts = {0: "0", 999: "999", 1000: "1 k", 63_045_632: "63.0 M", 434_519_040: "435 M", 1.5e9: "1.50 B"}
    assert {number: amount(number) for number in amounts} == amounts
    assert amount(3e21) == "3,000 E"
    sizes = {0: "0 B", 1023: "1,023 B", 12_288: "12 KiB", 126_091_264: "120 MiB", 2**50: "1 PiB"}
    assert {number: size(number) for number in sizes} == sizes
    assert difference(63, 65) == "-3.1 %"
    assert difference(2_598_912, 2_600_000) == "+0.0 %"


@pytest.fixture
def run(tmp_path: Path) -> str:
    save_model(regard.build(Decoder(vocabulary=300, width=16, depth=1, attention=Attention(heads=2))), tmp_path / "run")
    return str(tmp_path / "run")


def test_convert(run: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = [line.split() for line in shown("convert", run, "--format", "int8", str(out)).splitlines()]
    sizes = {path.name: path.stat().st_size for path in out.iterdir()}
    assert lines[0][-2:] == ["(int8)", "bytes"]
    assert {line[0]: line[1] for line in lines[1:-1]} == {name: f"{size:,}" for name, size in sizes.items()}
    assert lines[-1] == ["total", f"{sum(sizes.values()):,}"]
    found = json.loads(shown("convert", run, str(tmp_path / "other"), "--format", "bf16", "--json"))
    assert (found["directory"], found["form"]) == (str(tmp_path / "other"), "bf16")
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "other").iterdir())


def test_convert_keeps_existing_files(run: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    result = CliRunner().invoke(app, ["convert", run, str(tmp_path / "out"), "--format", "int8"])
    assert isinstance(result.exception, RunError)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]
