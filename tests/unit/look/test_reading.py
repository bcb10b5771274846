"""Images and class names as a model's files and training have them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import write_decoder, write_vision

import regard
from regard.blocks.settings import Attention
from regard.errors import DataError, InputError
from regard.look.reading import Input, class_names, image_from
from regard.look.study import Study
from regard.models.settings import Vision
from regard.weights.directory import save_model


@pytest.fixture
def coloured(tmp_path: Path) -> Path:
    file = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 21, 3), dtype=np.uint8)).save(file)
    return file


def test_a_file_is_read_as_training_reads_it(tmp_path: Path, coloured: Path) -> None:
    """The same file in a folder of a class, prepared for a model of this size."""
    model = regard.load(write_vision(tmp_path / "model"), "cpu")
    (tmp_path / "data" / "a").mkdir(parents=True)
    coloured.rename(file := tmp_path / "data" / "a" / "picture.png")
    grey = np.asarray(Image.open(file).convert("L").resize((8, 8), Image.Resampling.BILINEAR))
    found = image_from(model, file)
    assert np.array_equal(found[0], grey)
    assert found.shape == (1, 8, 8)
    Study(model).run(Input(image=found))


def test_colours(tmp_path: Path, coloured: Path) -> None:
    save_model(
        regard.build(Vision(image=(8, 16), patch=4, width=8, depth=1, attention=Attention(heads=1))), tmp_path / "m"
    )
    found = image_from(regard.load(tmp_path / "m", "cpu"), coloured)
    expected = np.asarray(Image.open(coloured).resize((16, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(found, expected.transpose(2, 0, 1))


def test_files_that_are_no_images(tmp_path: Path, coloured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = regard.load(write_vision(tmp_path / "model"), "cpu")
    broken = tmp_path / "broken.png"
    broken.write_bytes(coloured.read_bytes()[:200])
    (tmp_path / "text.png").write_text("no image", encoding="utf-8")
    for name, told in (
        ("nowhere.png", "does not exist; name a file with an image"),
        (".", "is a folder; name a file with an image"),
        ("text.png", "does not decode as an image; give one that Pillow reads, such as PNG or JPEG"),
        ("broken.png", "does not decode as an image"),
    ):
        with pytest.raises(DataError, match=told):
            image_from(model, tmp_path / name)
    with pytest.raises(InputError, match="cannot be read by a model of kind decoder; give a text"):
        image_from(regard.load(write_decoder(tmp_path / "decoder"), "cpu"), coloured)
    many = Vision(image=(8, 8), patch=4, channels=5, width=8, depth=1, attention=Attention(heads=1))
    save_model(regard.build(many), tmp_path / "many")
    with pytest.raises(InputError, match="reads images of 5 channels, and files have 1 or 3"):
        image_from(regard.load(tmp_path / "many", "cpu"), coloured)
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r"needs Pillow; install it: pip install 'regard\[vision\]'"):
        image_from(model, coloured)


def test_class_names(tmp_path: Path) -> None:
    place = write_vision(tmp_path)
    loaded = regard.load(place, "cpu")
    assert class_names(loaded, "label") == []
    loaded.config["id2label"] = {"10": "ten", "0": "zero", "2": "two"}
    assert class_names(loaded, "label") == ["zero", "two", "ten"]
    loaded.config["id2label"] = {"x": "zero"}
    assert class_names(loaded, "label") == []
    (place / "labels.json").write_text(json.dumps({"label": ["shoe", "bag", "coat"]}), encoding="utf-8")
    run = Study(loaded).run(Input(image=np.zeros((1, 8, 8), np.uint8)))
    names = {each.id: each.text for each in run.answers[0].rows[0].candidates}
    assert names == {0: "shoe", 1: "bag", 2: "coat"}


def test_silent_heads_may_give_their_mean(tmp_path: Path) -> None:
    study = Study(regard.load(write_decoder(tmp_path), "cpu"))
    text, silent = "ein Hund läuft durch den Schnee", ("decoder.0.attention.1", "decoder.1.attention.0")
    plain, zero = study.run(Input(text)), study.run(Input(text, ablated=silent))
    mean = study.run(Input(text, ablated=tuple(f"{head}=mean" for head in silent)))
    assert mean.key != zero.key
    assert mean.plain is plain
    tokens = torch.tensor([plain.sides["decoder"].ids])
    with regard.record(study.network, "*.heads") as seen:
        study.network(tokens)
    edit = {
        f"decoder.{layer}.attention.heads": regard.edits.Ablate(
            [head], seen[f"decoder.{layer}.attention.heads"][0].mean(0)
        )
        for layer, head in ((0, 1), (1, 0))
    }
    with torch.no_grad(), regard.record(study.network, "decoder.1.attention.weights", edit=edit) as edited:
        scores = study.network(tokens)[0].softmax(-1)
    name = "decoder.1.attention.weights"
    assert torch.allclose(study.tensor(mean.key, name), edited[name][0], atol=1e-6)
    best = [row.candidates[0].chance for row in mean.answers[0].rows]
    assert np.allclose(best, scores.max(-1).values.numpy(), atol=1e-5)
    assert not np.allclose(best, [row.candidates[0].chance for row in zero.answers[0].rows], atol=1e-5)
