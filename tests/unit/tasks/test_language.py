"""Evaluation of language models, against losses that are computed token by token in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.blocks.layout import Padded
from regard.data.columns import Batch, Sequences
from regard.errors import SettingsError
from regard.models.families import Decoder
from regard.tasks.recipe import make_job
from regard.tasks.run import evaluate_run, prepare_job
from regard.tasks.task import job_tokenizers
from regard.use.generator import Generator
from regard.weights.directory import CONFIG, OF_RUN, load_model, read_config

SUBJECTS = [f"{animal} läuft {where}" for animal in ("Hund", "Bär") for where in ("durch", "in")]
TEXT = "\n".join(f"Der {each} den Wald, über {number} Brücken – weit." for each in SUBJECTS for number in "23")
CONTEXT = 16


def trained(folder: Path, kind: str, **task: Any) -> Path:
    (folder / "text.txt").write_text(TEXT + "\n", encoding="utf-8")
    document = task.pop("document", "line")
    tables = {
        "task": {"kind": "language", "context": CONTEXT, **task},
        "data": {"train": [str(folder / "text.txt")], "valid": [str(folder / "text.txt")], "document": document},
        "text": {"kind": kind, **({"size": 300} if kind == "byte-bpe" else {})},
        "model": {"preset": "llama-tiny", "depth": 1, "width": 16, "attention": {"heads": 2, "kv_heads": 1}},
        "train": {"steps": 2, "tokens": 64},
    }
    return regard.train(tables, {"train.directory": str(folder / "run")}, device="cpu").directory


def losses(model: Decoder, ids: list[int], stride: int) -> list[float]:
    """The loss of each token but the first. A token is predicted in the first window that contains it."""
    found: list[float] = []
    start = 0
    while len(found) < len(ids) - 1:
        window = ids[start : start + CONTEXT + 1]
        with torch.no_grad():
            logs = model(torch.tensor([window[:-1]]))[0].double().log_softmax(-1)
        for place in range(len(window) - 1):
            if start + place >= len(found):
                found.append(-float(logs[place, window[place + 1]]))
        start += stride
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["characters", "bytes", "byte-bpe"])
def test_metrics_by_token_word_byte_and_character(kind: str, tmp_path: Path) -> None:
    run = trained(tmp_path, kind, document="file" if kind == "bytes" else "line")
    model = regard.load(run, "cpu")
    assert isinstance(model, Generator)
    end = model.tokenizer.role("end")
    parts = [TEXT + "\n"] if kind == "bytes" else TEXT.split("\n")
    ids = [token for part in model.tokenizer.ids(parts) for token in (*part, end)]
    network = model.network.double()
    lines = TEXT.count("\n") + 1
    words, size, characters = len(TEXT.split()) + lines, len(TEXT.encode()) + 1, len(TEXT) + 1
    for stride in (None, 5, CONTEXT, 1):
        _, found, _ = evaluate_run(run, "valid", device="cpu", stride=stride)
        each = losses(network, ids, stride or CONTEXT)
        if stride is None:  # whole windows only
            each = each[: len(each) // CONTEXT * CONTEXT]
        mean = sum(each) / len(each)
        total = mean * len(ids)
        assert found["loss"] == pytest.approx(mean, rel=1e-5)
        assert found["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
        assert found["word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-3)
        assert found["bits_per_byte"] == pytest.approx(total / size / math.log(2), rel=1e-5)
        assert found["bits_per_character"] == pytest.approx(total / characters / math.log(2), rel=1e-5)
    config = (run / CONFIG).read_text("utf-8")
    assert "tokens = 64" in config
    results = []
    for tokens in (16, 40, 4096):
        (run / CONFIG).write_text(config.replace("tokens = 64", f"tokens = {tokens}"), encoding="utf-8")
        results.append(evaluate_run(run, "valid", device="cpu", stride=3)[1]["loss"])
    assert results == pytest.approx([results[0]] * 3, rel=1e-6)


@pytest.mark.slow
def test_documents_alone(tmp_path: Path) -> None:
    run = trained(tmp_path, "characters", across=False)
    _, found, _ = evaluate_run(run, "valid", device="cpu")
    size = len(TEXT.encode()) + 1
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2) * (len(TEXT) + 1) / size, rel=0.2)
    with pytest.raises(SettingsError, match="stride"):
        evaluate_run(run, "valid", device="cpu", stride=4)


def test_noise_replaces_a_share_of_the_tokens_that_are_read_in_training(tmp_path: Path) -> None:
    run = trained(tmp_path, "characters", noise=0.3)
    job = make_job("run", {name: table for name, table in read_config(run).items() if name not in OF_RUN}, {})
    task = prepare_job(job, torch.device("cpu"), None, job_tokenizers(job, run), None, ("train",))
    model = load_model(run)
    seen: list[torch.Tensor] = []
    model.embedding.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    text = torch.arange(5, 25).repeat(50).view(10, 100)
    batch = Batch({"text": Sequences(text, Padded(10, 100))}, {"text.next": text.roll(-1, 1)})
    torch.manual_seed(1)
    for training in (False, True):
        task.loss(model.train(training), batch)
    assert torch.equal(seen[0], text), "an evaluation reads the text itself"
    changed = float((seen[1] != text).double().mean())
    assert abs(changed - 0.3 * 19 / 20) < 4 * math.sqrt(0.285 * 0.715 / 1000), "a token can be replaced by an equal one"
    assert set(seen[1].unique().tolist()) <= set(text.unique().tolist())
