"""Directories that `regard convert` writes work in the pipelines of transformers, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image
from text_cases import CORPUS
from transformers import pipeline

import regard
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Ends, Greedy, Rules
from regard.training.report import Display
from regard.use.model import Loaded
from regard.weights.convert import convert

pytestmark = pytest.mark.slow


def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: dict[str, Any]) -> tuple[Loaded, list[str]]:
    """The model of a short run, and what `convert` reports; the other form is in `theirs`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)
    Path("train.txt").write_text("\n".join(CORPUS), encoding="utf-8")
    Path("job.toml").write_text(tomli_w.dumps({**table, "train": {"steps": 12, "optimizer": {"rate": 3e-3}}}))
    run = regard.train("job.toml", device="cpu", threads=1, display=Display(quiet=True))
    notes: list[str] = []
    convert(run.directory, "theirs", "huggingface", report=notes.append)
    return regard.load(run.directory, "cpu"), notes


def test_fill_mask_and_features_of_a_bert_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"task": {"kind": "masked", "context": 32}, "data": {"train": ["train.txt"]}, "text": {"size": 150}}
    model = {"preset": "bert-tiny", "width": 32, "attention": {"heads": 4}}
    ours, notes = converted(tmp_path, monkeypatch, {**table, "model": model})
    assert notes == ["the head pooler (pooling) is left out: no task trains it"]
    texts = ["Der Hund [MASK] den Schnee.", "My neighbour's [MASK] doesn't like the wide street;"]
    for text, (expected,) in zip(texts, ours.predict(texts), strict=True):
        found = pipeline("fill-mask", "theirs")(text)
        assert {each["token_str"]: each["score"] for each in found} == pytest.approx(expected, abs=2e-6)
    assert ours.tokenizers is not None
    vectors = torch.tensor(pipeline("feature-extraction", "theirs")("Eine Katze"))
    with torch.no_grad():
        hidden = ours.network(torch.tensor([ours.tokenizers.source.encode("Eine Katze").ids]))
    assert torch.allclose(vectors, hidden, atol=1e-5)


SMALL_BERT: dict[str, Any] = {
    "text": {"size": 60},
    "model": {"preset": "bert-tiny", "width": 32, "attention": {"heads": 4}, "initial": {"deviation": 0.5}},
}


def test_classes_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokenizer returns the segments too. A form made from theirs keeps the names of the classes."""
    rows = [f"a {word} dog\tit is {word}\t{label}\n" for word, label in (("good", "x"), ("bad", "y"))] * 9
    (tmp_path / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    data = {"train": ["pairs.tsv"], "valid": ["pairs.tsv"], "second": 2, "label": 3}
    ours, _ = converted(tmp_path, monkeypatch, {"task": "classify", "data": data, **SMALL_BERT})
    found = np.ravel(pipeline("text-classification", "theirs", top_k=None)({"text": "a dog", "text_pair": "it is"}))
    [expected] = ours.predict([("a dog", "it is")])
    assert {each["label"]: each["score"] for each in found} == pytest.approx(expected["probabilities"], abs=2e-6)
    convert("theirs", "again", "regard")
    [again] = regard.load("again", "cpu").predict([("a dog", "it is")])
    assert again["probabilities"] == pytest.approx(expected["probabilities"], abs=2e-6)


def test_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their names."""
    (tmp_path / "tags.txt").write_text("a O\ndog B-X\nruns I-X\n\n" * 9, encoding="utf-8")
    data = {"kind": "columns", "train": ["tags.txt"], "valid": ["tags.txt"]}
    ours, _ = converted(tmp_path, monkeypatch, {"task": "tag", "data": data, **SMALL_BERT})
    expected = ours.predict(["a dog runs"])
    found = pipeline("token-classification", "theirs", ignore_labels=[], aggregation_strategy="first")("a dog runs")
    convert("theirs", "again", "regard")
    for name in ("theirs", "again"):
        assert regard.load(name, "cpu").predict(["a dog runs"]) == expected
    assert {tag.removeprefix("B-").removeprefix("I-") for tag in expected[0]["tags"]} == {
        each["entity_group"] for each in found
    }


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("preset", ["gpt2", "llama-tiny"])
def test_text_generation(preset: str, across: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"kind": "language", "context": 24, "across": across}
    table = {"task": task, "data": {"train": ["train.txt"]}, "text": {"kind": "byte-bpe", "size": 350}}
    model = {"preset": preset, "width": 32, "depth": 2, "attention": {"heads": 4}}
    model |= {"ffn": {"hidden": 64}} if preset == "llama-tiny" else {"position": {"length": 64}}
    ours, _ = converted(tmp_path, monkeypatch, {**table, "model": model})
    assert ours.tokenizers is not None
    tokenizer = ours.tokenizers.source
    generate = pipeline("text-generation", "theirs")
    for prompt in ("Der Hund", "The old man walks along", "Eine Katze sieht die"):
        ids = [*([] if across else [tokenizer.role("start")]), *tokenizer.ids([prompt])[0]]
        assert generate.tokenizer(prompt)["input_ids"] == ids
        ends, rules = Ends(None, tokenizer.role("end")), Rules(shortest=4, longest=Absolute(tokens=12))
        written = decode(ours.network, [ids], ends, Greedy(), rules)[0][0].tokens
        asked = {"do_sample": False, "min_new_tokens": 4, "max_new_tokens": 12, "return_full_text": False}
        assert generate(prompt, **asked)[0]["generated_text"] == tokenizer.decode(written)


@pytest.mark.parametrize("channels", [1, 3])
def test_image_classification(channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    images = {name: draw.integers(0, 256, (12, 12, 3), np.uint8) for name in ("cat", "dog", "owl")}
    for split in ("train", "valid"):
        for name, pixels in images.items():
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(pixels).save(tmp_path / split / name / "1.png")
    data = {"kind": "image-folder", "train": ["train"], "valid": ["valid"]}
    sizes = {"image": [8, 8], "patch": 4, "channels": channels, "width": 32, "depth": 2, "attention": {"heads": 4}}
    ours, notes = converted(
        tmp_path, monkeypatch, {"task": "image", "data": data, "model": {"preset": "vit-28", **sizes}}
    )
    assert len(notes) == (channels == 1)
    classify = pipeline("image-classification", "theirs")
    for name, pixels in images.items():
        grey = Image.fromarray(pixels).convert("L")
        for image in (Image.fromarray(pixels), grey):
            image.save("probe.png")
            expected = ours.predict(["probe.png"])[0]["probabilities"]
            found = {each["label"]: each["score"] for each in classify("probe.png")}
            assert found == pytest.approx(expected, abs=0.01 if channels == 1 and image is not grey else 1e-4), name
