"""The losses of translation with a second pass, against the published formulas; validation by translating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from training_cases import Job, model_settings

from regard.data.batches import Share
from regard.data.columns import IGNORED, Batch
from regard.data.settings import Parallel
from regard.decoding.settings import Beam, Ends, Greedy, Hypothesis, Search
from regard.models.build import build
from regard.models.families import EncoderDecoder
from regard.settings import parse
from regard.tasks import translate
from regard.tasks.task import TrainingData
from regard.tasks.translate import Bleu, SimCut, Translate, TranslateTask
from regard.text.settings import Words
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.training.settings import Train


def made(tmp_path: Path, layout: str = "padded", **task: Any) -> tuple[TranslateTask, EncoderDecoder, Batch]:
    """A task, its model, and a batch."""
    settings = parse(Train, {"steps": 1, "tokens": 64, "layout": layout, "precision": "float64"})
    job = Job("translate", settings, tmp_path, examples=6, valid=0)
    model = job.model().train()
    assert isinstance(model, EncoderDecoder)
    found = TranslateTask(Translate(**task), model.settings)
    found.data = job.task().data
    (batch,) = next(iter(found.batches("train", Share()).once())).batches
    return found, model, batch


def logits_of(model: EncoderDecoder, batch: Batch, *seen: Tensor) -> Tensor:
    source, target = batch.sequences["source"], batch.sequences["target"]
    scores: Tensor = model(source.tokens, target.tokens, source.layout, target.layout, seen or None)
    return scores.flatten(0, -2)[batch.values["target.next"].flatten() != IGNORED]


def smoothed(logits: Tensor, batch: Batch) -> Tensor:
    labels = batch.values["target.next"].flatten()
    return functional.cross_entropy(logits, labels[labels != IGNORED], reduction="sum", label_smoothing=0.1)


def apart(logits: Tensor, others: Tensor) -> Tensor:
    """KL(p ‖ q) of PyTorch, which takes q first."""
    return functional.kl_div(others.log_softmax(-1), logits.log_softmax(-1), reduction="sum", log_target=True)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_simcut_is_the_formula(tmp_path: Path, layout: str) -> None:
    """The second half of a doubled batch gives the second pass, which is here a pass of its own."""
    task, model, batch = made(tmp_path, layout, consistency=SimCut(weight=3.0, cut=0.3))
    torch.manual_seed(5)
    loss = task.loss(model, batch)
    torch.manual_seed(5)
    seen = [torch.rand_like(side.tokens.double().repeat(2, *[1] * (side.tokens.dim() - 1)), dtype=torch.float32) >= 0.3
            for side in batch.sequences.values()]  # fmt: skip
    whole = logits_of(model, batch)
    cut = logits_of(model, batch, *(each.chunk(2)[1] for each in seen))
    wanted = smoothed(whole, batch) + 3 * apart(whole, cut)
    torch.testing.assert_close(loss.total, wanted, rtol=1e-10, atol=1e-10)
    ours = torch.autograd.grad(loss.total, list(model.parameters()))
    theirs = torch.autograd.grad(wanted, list(model.parameters()))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert float(loss.sums["plain"]) < float(loss.total.detach()), "metrics leave the divergence out"


def test_training_is_one_graph_and_evaluation_takes_one_pass(tmp_path: Path) -> None:
    task, model, batch = made(tmp_path, "packed", consistency=SimCut())
    compiled = torch.compile(task.loss, backend="eager", fullgraph=True)
    torch.manual_seed(5)
    expected = task.loss(model, batch)
    torch.manual_seed(5)
    found = compiled(model, batch)
    torch.testing.assert_close(found.total, expected.total)
    plain, _, _ = made(tmp_path, "packed")
    model.eval()
    with torch.no_grad():
        assert float(task.loss(model, batch).total) == float(plain.loss(model, batch).total)


def test_hidden_tokens_keep_their_position(tmp_path: Path) -> None:
    _, model, batch = made(tmp_path)
    tokens, layout = batch.sequences["source"].tokens, batch.sequences["source"].layout
    others = tokens % 2 + 7
    none = torch.zeros_like(tokens, dtype=torch.bool)
    with torch.no_grad():
        hidden = model.source(tokens, layout, seen=none)
        assert torch.equal(hidden, model.source(others, layout, seen=none)), "no token is seen"
        assert not torch.equal(model.source(tokens, layout), model.source(others, layout))
        assert torch.equal(model.source(tokens, layout, seen=~none), model.source(tokens, layout))


SAME = ["the small dog sleeps in the old garden", "a red house stands near the long river"]


def tried(tmp_path: Path, bleu: Bleu, targets: list[str], length: int | None = None) -> TranslateTask:
    """A task whose validation data are `SAME` and these targets."""
    tokenizers = TokenizerPair.of(train_tokenizer(Words(), SAME))
    (tmp_path / "a").write_text("\n".join(SAME) + "\n")
    (tmp_path / "b").write_text("\n".join(targets) + "\n")
    position = {"position": {"kind": "learned", "length": length}} if length else {}
    settings = model_settings("translate", **position).changed({"vocabulary": tokenizers.source.size})
    task = TranslateTask(Translate(bleu=bleu), settings, tokenizers)
    data = Parallel(root=str(tmp_path), valid=("a", "b"))
    task.data = TrainingData(data, {}, Train(steps=1), torch.device("cpu"))
    assert task.metric_names[-1] == "bleu"
    return task


def test_bleu_of_a_model_that_repeats_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right where the reference is the source, and nowhere else."""
    asked: list[tuple[Search, int]] = []

    def repeat(model: Any, inputs: list[list[int]], ends: Ends, search: Search, **_: Any) -> list[list[Hypothesis]]:
        asked.append((search, len(inputs)))
        return [[Hypothesis(tokens[:-1], 0.0, [], True)] for tokens in inputs]

    monkeypatch.setattr(translate, "decode", repeat)
    for beam, search in ((1, Greedy()), (3, Beam(size=3))):
        task = tried(tmp_path, Bleu(beam=beam), SAME)
        model: Any = build(task.model)
        assert task.extra_metrics(model, "valid")["bleu"] == pytest.approx(100)
        assert asked.pop() == (search, 2)
    assert tried(tmp_path, Bleu(), SAME[::-1]).extra_metrics(model, "valid")["bleu"] < 10
    tried(tmp_path, Bleu(sentences=1), SAME).extra_metrics(model, "valid")
    assert asked.pop()[1] == 1
    assert tried(tmp_path, Bleu(), SAME, length=5)._validation == ([], []), "none of them can be read"


def test_a_model_translates_for_validation_and_prediction(tmp_path: Path) -> None:
    """Untrained, it is very bad; it matters that it goes all the way."""
    task = tried(tmp_path, Bleu(), SAME)
    model: Any = build(task.model).eval()
    assert 0 <= task.extra_metrics(model, "valid")["bleu"] < 50
    assert made(tmp_path / "other")[0].extra_metrics(model, "valid") == {}
    assert [type(text) for text in task.predict(model, SAME)] == [str, str]
