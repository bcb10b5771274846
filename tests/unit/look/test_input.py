"""Images and class names as training and the model's files have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from study_cases import IMAGE
from tiny_models import write_decoder, write_vision

import regard
from regard.blocks.settings import Attention
from regard.errors import DataError, InputError
from regard.look.input import NO_SPAN, Input, class_names, image_from, shown
from regard.look.study import Study
from regard.look.views.vectors import atlas
from regard.models.settings import Vision
from regard.text.settings import ByteBpe
from regard.text.train import train_tokenizer
from regard.use.generator import TextFrame
from regard.weights.directory import save_model


@pytest.fixture
def coloured(tmp_path: Path) -> Path:
    file = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 21, 3), dtype=np.uint8)).save(file)
    return file


def vision_model(place: Path, **changes: object) -> Any:
    settings = Vision(**{"image": (8, 16), "patch": 4, "width": 8, "depth": 1, **changes}, attention=Attention(heads=1))
    save_model(regard.build(settings), place)
    return regard.load(place, "cpu")


def test_a_file_is_resized_and_coloured_for_the_model(
    tmp_path: Path, coloured: Path, studies: dict[str, Study]
) -> None:
    grey = np.asarray(Image.open(coloured).convert("L").resize((8, 8), Image.Resampling.BILINEAR))
    found = image_from(studies["vision"].loaded, coloured)
    assert np.array_equal(found, grey[None])
    studies["vision"].run(Input(image=found))
    expected = np.asarray(Image.open(coloured).resize((16, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(image_from(vision_model(tmp_path / "m"), coloured), expected.transpose(2, 0, 1))


def test_files_that_cannot_be_read(
    tmp_path: Path, coloured: Path, studies: dict[str, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = studies["vision"].loaded
    (tmp_path / "broken.png").write_bytes(coloured.read_bytes()[:200])
    (tmp_path / "text.png").write_text("no image", encoding="utf-8")
    for name in ("nowhere.png", ".", "text.png", "broken.png"):
        with pytest.raises(DataError, match=str(tmp_path / name)):
            image_from(model, tmp_path / name)
    with pytest.raises(InputError, match="kind decoder"):
        image_from(studies["decoder"].loaded, coloured)
    with pytest.raises(InputError, match="5 channels"):
        image_from(vision_model(tmp_path / "many", channels=5), coloured)
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r"regard\[vision\]"):
        image_from(model, coloured)


def test_a_decoder_reads_a_text_as_it_continues_it(tmp_path: Path) -> None:
    """With the tokens that its training or its Hugging Face directory puts before a text, and no others."""
    model = regard.load(write_decoder(tmp_path), "cpu")
    assert isinstance(model, regard.Generator)
    start, end = model.tokenizer.role("start"), model.tokenizer.role("end")
    text, plain = "ein Hund", model.tokenizer.encode("ein Hund", framed=False)
    for frame, before in ((TextFrame((), (end,)), []), (TextFrame((start,)), [start]), (TextFrame((end,)), [end])):
        model.frame = frame
        side = Study(model).run(Input(text)).sides["decoder"]
        assert side.ids == model.ids(text) == [*before, *plain.ids]
        assert [token.span for token in side.tokens] == [*[NO_SPAN] * len(before), *plain.offsets]
        with regard.record(model, "decoder.0.residual") as seen:
            model.network(torch.tensor([side.ids]))
        vectors = atlas(Study(model), [text])
        last = len(vectors.words[-1].tokens)
        torch.testing.assert_close(vectors.vectors[1, -1], seen["decoder.0.residual"][0, -last:].mean(0))
    model.frame = TextFrame((), (end,))
    assert Study(model).run(Input("")).sides["decoder"].ids == [end]


def test_class_names(tmp_path: Path) -> None:
    place = write_vision(tmp_path)
    loaded = regard.load(place, "cpu")
    for given, names in (
        (None, []),
        ({"10": "ten", "0": "zero", "2": "two"}, ["zero", "two", "ten"]),
        ({"x": "zero"}, []),
    ):
        if given is not None:
            loaded.config["id2label"] = given
        assert class_names(loaded, "label") == names
    (place / "labels.json").write_text(json.dumps({"label": ["shoe", "bag", "coat"]}), encoding="utf-8")
    run = Study(loaded).run(Input(image=IMAGE))
    names = {each.id: each.text for each in run.answers[0].rows[0].candidates}
    assert names == {0: "shoe", 1: "bag", 2: "coat"}


def test_blanks_are_seen() -> None:
    """A byte-level vocabulary writes a space as Ġ and the end of a line as Ċ."""
    tokenizer = train_tokenizer(ByteBpe(size=300), ["one two\n\nthree\t four\r\n"] * 20)
    found = {shown(tokenizer, token) for token in range(tokenizer.size)}
    letters = {letter for text in found for letter in text}
    assert {*"↵␣⇥␍"} <= letters
    assert not {*"ĠĊĉč"} & letters
