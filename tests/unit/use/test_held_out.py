"""What models are measured on: the pairs of each direction, and the figures of tasks that do not translate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text_cases import CORPUS

import regard
from regard.blocks.settings import Attention
from regard.data.labels import Labels
from regard.errors import DataError, SettingsError
from regard.models.settings import Classification, Decoder, Encoder, Masked, ModelSettings, Vision
from regard.tasks.run import evaluate_run
from regard.text.settings import Bpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.evaluation import exams, read_texts, task_of
from regard.weights.directory import save_labels, save_model

TRAIN = {"steps": 1, "tokens": 256}
HEADS = Attention(heads=2)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    for split, count in (("valid", 2), ("test", 3)):
        for language in ("en", "de"):
            lines = [f"{language} {split} {number}" for number in range(count)]
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return {
        "root": str(tmp_path),
        "languages": ["en", "de"],
        "valid": ["valid.en", "valid.de"],
        "test": ["test.en", "test.de"],
    }


def test_one_direction(files: dict[str, Any]) -> None:
    split, (exam,) = exams({"task": "translate", "data": files}, None)
    assert split == "test"
    assert (exam.name, exam.to) == ("en-de", None)
    assert exam.sources == ["en test 0", "en test 1", "en test 2"]
    assert exam.references == ["de test 0", "de test 1", "de test 2"]


def test_both_directions_are_apart_and_limited_each(files: dict[str, Any]) -> None:
    _, found = exams({"task": {"kind": "translate"}, "data": files | {"both": True}}, "test", limit=2)
    assert [(exam.name, exam.to) for exam in found] == [("en-de", "de"), ("de-en", "en")]
    assert found[0].sources == found[1].references == ["en test 0", "en test 1"]


def test_the_validation_data_stand_in_for_the_test(files: dict[str, Any]) -> None:
    del files["test"]
    split, (exam,) = exams({"task": "translate", "data": files}, None)
    assert (split, len(exam.references)) == ("valid", 2)
    with pytest.raises(DataError, match=r"data\.test is empty"):
        exams({"task": "translate", "data": files}, "test")


def test_data_may_have_moved(files: dict[str, Any]) -> None:
    config = {"task": "translate", "data": files | {"root": "/nowhere"}}
    _, (exam,) = exams(config, "valid", {"root": files["root"]})
    assert len(exam.references) == 2


def test_without_pairs_there_is_nothing_to_translate() -> None:
    with pytest.raises(SettingsError, match=r"does not say what it was trained on; give --input and --reference"):
        exams({}, None)
    with pytest.raises(SettingsError, match=r"data\.kind \(digits\) holds no pairs to translate; give --input"):
        exams({"data": {"kind": "digits"}}, None)


def test_the_task_of_a_run() -> None:
    assert task_of({"task": "language"}) == task_of({"task": {"kind": "language"}}) == "language"
    assert task_of({}) is None


def test_lines_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "texts").write_bytes(b"good\n\nb\xffd\n")
    with pytest.raises(DataError, match=r"texts, line 3 is not UTF-8 \(byte 2 is 0xff\); correct it"):
        read_texts(str(tmp_path / "texts"))
    (tmp_path / "texts").write_bytes(b"good\n\nalso good")
    assert read_texts(str(tmp_path / "texts")) == ["good", "", "also good"]


# ------------------------------------------------------------------------------------------------------- other tasks


def know_nothing(settings: ModelSettings, directory: Path, tables: dict[str, Any]) -> None:
    """A model of zeros: to it all tokens, and all classes, are alike."""
    model = regard.build(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    save_model(model, directory, tables=tables)


@pytest.mark.parametrize("kind", ["language", "masked"])
def test_texts(kind: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(Bpe(size=120), CORPUS)
    (tmp_path / "test.txt").write_text("\n\n".join(CORPUS) + "\n")
    plain: dict[str, Any] = {"vocabulary": tokenizer.size, "width": 16, "depth": 1, "attention": HEADS}
    settings = Decoder(**plain) if kind == "language" else Encoder(**plain, heads={"masked": Masked()})
    data = {"kind": "text", "root": str(tmp_path), "train": ["gone.txt"], "test": ["test.txt"]}
    know_nothing(settings, tmp_path / "run", {"task": {"kind": kind, "context": 32}, "data": data, "train": TRAIN})
    TokenizerPair.of(tokenizer).save(tmp_path / "run")
    split, figures = evaluate_run(tmp_path / "run", None, device="cpu")
    assert split == "test"
    assert figures["loss"] == pytest.approx(math.log(tokenizer.size), rel=1e-5)
    assert figures["perplexity"] == pytest.approx(tokenizer.size, rel=1e-4)


def test_images(tmp_path: Path) -> None:
    """The labels are those of training, which need not be there any more."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "test.npz", images=rng.integers(0, 256, (20, 8, 8), np.uint8), labels=np.arange(20) % 4)
    settings = Vision(
        width=16,
        depth=1,
        image=(8, 8),
        patch=4,
        channels=1,
        heads={"label": Classification(classes=4)},
        attention=HEADS,
    )
    data = {"kind": "npz", "root": str(tmp_path), "train": ["gone.npz"], "test": ["test.npz"]}
    know_nothing(settings, tmp_path / "run", {"task": {"kind": "image"}, "data": data, "train": TRAIN})
    save_labels({"label": Labels(("0", "1", "2", "3"))}, tmp_path / "run")
    split, figures = evaluate_run(tmp_path / "run", None, device="cpu")
    assert split == "test"
    assert figures["loss"] == pytest.approx(math.log(4), rel=1e-5)
    assert figures["accuracy"] == pytest.approx(0.25)
