"""Evaluation: metrics worked out by hand, reports, significance tests, test sets, and other tasks."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text_cases import CORPUS

import regard
from regard.blocks.settings import Attention
from regard.errors import DataError, SettingsError
from regard.models.settings import Classification, Decoder, Encoder, Masked, ModelSettings, Vision
from regard.tasks.run import evaluate_run
from regard.text.settings import Bpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.evaluation import compare, corpus_metrics, evaluate_texts, evaluation_sets
from regard.weights.directory import save_labels, save_model

REFERENCE = ["a b c d f"]
HYPOTHESIS = ["a b c d e"]
WORDS = ("red", "green", "blue", "small", "large", "old", "new", "fast", "house", "tree", "river", "stone", "bird")
TRAIN = {"steps": 1, "tokens": 256}
HEADS = Attention(heads=2)


def bleu(hypotheses: list[str], references: list[str], tokenize: str = "13a") -> float:
    return corpus_metrics(hypotheses, references, ("bleu",), tokenize=tokenize)["bleu"].score


def corpus(count: int, seed: int = 0) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(5, 12))) for _ in range(count)]


def spoilt(texts: list[str], share: float, seed: int) -> list[str]:
    """Some words replaced."""
    drawn = random.Random(seed)
    return [" ".join("wrong" if drawn.random() < share else word for word in text.split()) for text in texts]


def test_metrics_by_hand() -> None:
    """BLEU: 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples, equal lengths. TER: 1 of 5 words."""
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert bleu(HYPOTHESIS, REFERENCE) == bleu(HYPOTHESIS, REFERENCE, "none") == pytest.approx(expected)
    assert corpus_metrics(HYPOTHESIS, REFERENCE, ("ter",))["ter"].score == pytest.approx(20)
    assert corpus_metrics(["abc def"], ["abc def"], ("chrf",))["chrf"].score == pytest.approx(100)
    assert corpus_metrics(["xyz uvw"], ["abc def"], ("chrf",))["chrf"].score == 0
    # BLEU of a corpus is not a mean over sentences.
    assert bleu(["a b c d", "x x x x"], ["a b c d", "a b c d"]) == pytest.approx(50)
    # 13a separates punctuation.
    assert bleu(["a b c d f."], ["a b c d f ."]) == pytest.approx(100)
    assert bleu(["a b c d f."], ["a b c d f ."], "none") < 80


def test_case() -> None:
    upper = ["A B C D F"]
    metrics = corpus_metrics(upper, REFERENCE)
    assert (metrics["bleu"].score, metrics["ter"].score) == (0, pytest.approx(100))
    lower = corpus_metrics(upper, REFERENCE, lowercase=True)
    assert (lower["bleu"].score, lower["chrf"].score) == (pytest.approx(100), pytest.approx(100))
    assert lower["ter"].score == 0
    assert "|case:lc|" in lower["bleu"].signature


def test_wrong_arguments() -> None:
    with pytest.raises(DataError, match="2 translations do not match 1 references"):
        bleu(["a", "b"], ["a"])
    with pytest.raises(DataError, match="there are no references"):
        bleu([], [])
    with pytest.raises(SettingsError, match=r"tokenize \(13b\) is unknown \(did you mean 13a\?\)"):
        bleu(["a"], ["a"], "13b")
    with pytest.raises(DataError, match="1 sources do not match 2 references"):
        evaluate_texts(["a", "b"], ["a", "b"], ["x"])
    with pytest.raises(DataError, match="1 translations do not match 2 references"):
        compare(["a", "b"], ["a"], ["a", "b"])


def test_reports() -> None:
    texts = corpus(20)
    perfect = evaluate_texts(texts, texts)
    scores = {name: round(metric.score, 6) for name, metric in perfect.metrics.items()}
    assert scores == {"bleu": 100, "chrf": 100, "ter": 0}
    assert (perfect.exact, perfect.sentences) == (1, 20)
    assert evaluate_texts(["A b c d", "a b c d", "a b c d."], ["a b c d"] * 3).exact == pytest.approx(1 / 3)
    table = json.loads(json.dumps(asdict(evaluate_texts(["a b c d ."], ["A B C D ."], ["x"]))))
    assert table["metrics"]["bleu"]["signature"].startswith("nrefs:1|case:mixed|")
    assert (table["worst"][0]["source"], table["lengths"][0]["sentences"]) == ("x", 1)


def test_reports_by_length() -> None:
    sources = ["w " * 3, "w " * 10, "w " * 11, "w " * 51]
    hypotheses = ["a b c d", "a b c d", "x x x x", "a b c d e f g h"]
    rows = evaluate_texts(hypotheses, ["a b c d"] * 4, sources).lengths
    assert [(row.first, row.last, row.sentences) for row in rows] == [(0, 10, 2), (11, 20, 1), (51, None, 1)]
    assert [round(row.bleu, 3) for row in rows[:2]] == [100, 0]
    assert [row.ratio for row in rows] == [1, 1, 2]
    assert [(row.first, row.last) for row in evaluate_texts(["a"], ["w " * 25]).lengths] == [(21, 30)]


def test_the_worst_come_first() -> None:
    references = ["the house is red", "a small bird sings", "rivers run fast"]
    hypotheses = ["the house is red", "zzz", "rivers run slow"]
    worst = evaluate_texts(hypotheses, references, ["eins", "zwei", "drei"], worst=2).worst
    assert [sentence.place for sentence in worst] == [2, 3]
    assert (worst[0].source, worst[0].hypothesis, worst[0].reference) == ("zwei", "zzz", "a small bird sings")
    assert evaluate_texts(hypotheses, references, worst=0).worst == []


def test_significance() -> None:
    """Of 12 pairs of equally good systems, p < 0.05 is expected in 0.6; more than 3 occur once in 450 times."""
    references = corpus(60)
    ours = spoilt(references, 0.2, 1)
    better = compare(ours, spoilt(references, 0.45, 2), references, samples=200)
    assert set(better) == {"bleu", "chrf", "ter"}
    assert all(each.p < 0.02 for each in better.values())
    assert better["bleu"].score > better["bleu"].against
    assert better["ter"].score < better["ter"].against
    assert "|bs:200|" in better["bleu"].signature
    equal = [
        compare(spoilt(references, 0.2, seed), spoilt(references, 0.2, 100 + seed), references, samples=60)
        for seed in range(12)
    ]
    assert sum(each["bleu"].p < 0.05 for each in equal) <= 3
    assert {each.p for each in compare(ours, ours, references, samples=50).values()} == {1.0}
    other = spoilt(references, 0.2, 3)
    assert compare(ours, other, references, samples=50) == compare(ours, other, references, samples=50)


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


def test_evaluation_sets(files: dict[str, Any]) -> None:
    split, (one,) = evaluation_sets({"task": "translate", "data": files}, None)
    assert (split, one.name, one.to) == ("test", "en-de", None)
    assert one.sources == ["en test 0", "en test 1", "en test 2"]
    assert one.references == ["de test 0", "de test 1", "de test 2"]
    both = {"task": {"kind": "translate"}, "data": files | {"both": True}}
    _, found = evaluation_sets(both, "test", limit=2)
    assert [(each.name, each.to) for each in found] == [("en-de", "de"), ("de-en", "en")]
    assert found[0].sources == found[1].references == ["en test 0", "en test 1"]
    moved = {"task": "translate", "data": files | {"root": "/nowhere"}}
    assert len(evaluation_sets(moved, "valid", {"root": files["root"]})[1][0].references) == 2
    del files["test"]
    split, (one,) = evaluation_sets({"task": "translate", "data": files}, None)
    assert (split, len(one.references)) == ("valid", 2)
    with pytest.raises(DataError, match=r"data\.test is empty"):
        evaluation_sets({"task": "translate", "data": files}, "test")
    with pytest.raises(SettingsError, match="does not name its data; give --input and --reference"):
        evaluation_sets({}, None)
    with pytest.raises(SettingsError, match=r"data\.kind \(digits\) has no pairs"):
        evaluation_sets({"data": {"kind": "digits"}}, None)


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
    split, metrics, _ = evaluate_run(tmp_path / "run", None, device="cpu")
    assert split == "test"
    assert metrics["loss"] == pytest.approx(math.log(tokenizer.size), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(tokenizer.size, rel=1e-4)


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
    save_labels({"label": ("0", "1", "2", "3")}, tmp_path / "run")
    split, metrics, _ = evaluate_run(tmp_path / "run", None, device="cpu")
    assert split == "test"
    assert metrics["loss"] == pytest.approx(math.log(4), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(0.25)
