"""Tasks on texts with a head: what they learn, the same loss in both layouts, their predictions, and bad input."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import regard
from regard.blocks.layout import Padded
from regard.data.batches import Share
from regard.data.examples import Question
from regard.errors import DataError, InputError, RegardError, SettingsError
from regard.models.build import build
from regard.settings import nested
from regard.tasks.answer import best_spans
from regard.tasks.classify import ClassifyTask
from regard.tasks.recipe import make_job
from regard.tasks.run import prepare_job
from regard.tasks.task import Task, head_task
from regard.text.tokenizer import Tokenizer
from regard.training.report import Display
from regard.training.step import Objective

CITIES = {"Paris": ["B-LOC"], "Rome": ["B-LOC"], "New York": ["B-LOC", "I-LOC"]}
GOOD, BAD = ["good", "nice", "great", "fine"], ["bad", "poor", "awful", "ugly"]


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of all tasks: 240 sentences about things in cities."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    rows = []
    for _ in range(240):
        label = rng.choice(["pos", "neg"])
        word, city = rng.choice(GOOD if label == "pos" else BAD), rng.choice([*CITIES])
        rows.append((f"the {rng.choice(['dog', 'cat', 'house'])} is {word} in {city}", label, city))
    texts = {
        "classes.tsv": [f"{text}\t{label}" for text, label, _ in rows],
        "numbers.tsv": [f"{text}\t{1.5 if label == 'pos' else -0.5}" for text, label, _ in rows],
        "pairs.tsv": [f"{one}\tis it {word} ?\t{label}" for one, label, _ in rows for word in ["nice"]],
        "positives.tsv": [f"{text}\ta {text[4:]} now" for text, _, _ in rows],
        "texts.txt": [text for text, _, _ in rows],
    }
    tags = [["O"] * (len(text.split()) - len(CITIES[city])) + CITIES[city] for text, _, city in rows]
    texts["tags.txt"] = [
        line
        for (text, *_), each in zip(rows, tags, strict=True)
        for line in [*map(" ".join, zip(text.split(), each, strict=True)), ""]
    ]
    (folder / "slots").mkdir()
    texts["slots/seq.in"] = texts["texts.txt"]
    texts["slots/seq.out"] = [" ".join(each) for each in tags]
    texts["slots/label"] = [label for _, label, _ in rows]
    texts["choices.jsonl"] = [
        json.dumps({"text": text, "options": [other, city], "label": 1}) if number % 2 else
        json.dumps({"text": text, "options": [city, other], "label": 0})
        for number, (text, _, city) in enumerate(rows)
        for other in [next(each for each in CITIES if each != city)]
    ]  # fmt: skip
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    asked = []
    for number, (text, _, city) in enumerate(rows):
        before = rows[-number][0] + " . "
        answers = [{"text": city, "answer_start": len(before) + text.index(city)}]
        question = {"id": str(number), "question": "where is it ?", "answers": answers}
        asked.append({"context": f"{before}{text} .", "qas": [question]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}), encoding="utf-8")
    return folder


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "classify": ({"kind": "classify", "weights": "balanced"}, {"kind": "labelled-tsv", "train": ["classes.tsv"]}),
    "pairs": ({"kind": "classify"}, {"kind": "labelled-tsv", "second": 2, "label": 3, "train": ["pairs.tsv"]}),
    "numbers": ({"kind": "classify"}, {"kind": "labelled-tsv", "labels": "numbers", "train": ["numbers.tsv"]}),
    "tag": ({"kind": "tag"}, {"kind": "columns", "train": ["tags.txt"]}),
    "slots": ({"kind": "tag"}, {"kind": "slots", "train": ["slots"]}),
    "answer": (
        {"kind": "answer", "context": 20, "stride": 4, "question": 8},
        {"kind": "squad", "train": ["squad.json"]},
    ),
    "choice": ({"kind": "choice"}, {"kind": "choices", "train": ["choices.jsonl"]}),
    "embed": ({"kind": "embed"}, {"kind": "parallel-tsv", "train": ["positives.tsv"]}),
    "texts": ({"kind": "embed"}, {"kind": "text", "train": ["texts.txt"]}),
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "encoder": {"kind": "encoder", "segments": 2, "dropout": 0.0},
    "decoder": {"kind": "decoder", "dropout": 0.0},
    "encoder-decoder": {"kind": "encoder-decoder", "dropout": 0.0},
    "elmo": {"kind": "elmo", "dropout": 0.0},
}


def recipe(folder: Path, case: str, family: str = "encoder", **train: Any) -> dict[str, Any]:
    task, data = CASES[case]
    data = {**data, "root": str(folder), "valid": data["train"]}
    body = {} if family == "elmo" else {"attention": {"heads": 2}, "norm_place": "pre"}
    model = {"width": 32, "depth": 2, **body, **FAMILIES[family]}
    settings = {"steps": 60, "tokens": 1024, "optimizer": {"rate": 4e-3}, **train}
    return {"task": task, "data": data, "text": {"kind": "wordpiece", "size": 250}, "model": model, "train": settings}


def prepared(folder: Path, case: str, family: str = "encoder", **train: Any) -> Task:
    return prepare_job(make_job("job", recipe(folder, case, family, **train), {}), torch.device("cpu"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_the_loss_does_not_depend_on_the_layout(folder: Path, case: str, family: str) -> None:
    if family == "encoder-decoder" and case not in ("classify", "pairs", "numbers"):
        with pytest.raises(SettingsError, match=r"model\.kind"):
            prepared(folder, case, family)
        return
    totals = []
    for layout in ("packed", "padded"):
        task = prepared(folder, case, family, layout=layout, tokens=9_000)
        torch.manual_seed(0)
        model = build(task.model).double().eval()
        with torch.no_grad():
            losses = [
                task.loss(model, batch) for step in task.batches("train", Share()).once() for batch in step.batches
            ]
        totals.append((float(sum(loss.total for loss in losses)), float(sum(loss.weight for loss in losses))))
    assert totals[0] == pytest.approx(totals[1], rel=2e-5)
    assert totals[0][1] > 0


@torch.no_grad()
def test_the_auxiliary_language_loss_is_a_mean_for_each_text(folder: Path) -> None:
    """Radford et al. (2018), section 3.2: the task's loss plus 0.5 times that of a language model on the same texts."""
    changes = nested({"task.language": 0.5, "task.weights": None})
    with pytest.raises(SettingsError, match=r"task\.language .* decoder"):
        prepare_job(make_job("job", recipe(folder, "pairs"), changes), torch.device("cpu"))
    found = []
    for layout in ("packed", "padded"):
        given = recipe(folder, "pairs", "decoder", layout=layout, tokens=9_000)
        task = prepare_job(make_job("job", given, changes), torch.device("cpu"))
        torch.manual_seed(0)
        model = build(task.model).double()
        batches = [batch for step in task.batches("train", Share()).once() for batch in step.batches]
        model.train()
        objective = sum(float(task.loss(model, batch).total) for batch in batches)
        plain = sum(float(task.loss(model, batch).sums["plain"]) for batch in batches)
        model.eval()
        assert sum(float(task.loss(model, batch).total) for batch in batches) == pytest.approx(plain, rel=1e-5)
        found.append((objective, plain))
    assert isinstance(task, ClassifyTask)
    expected = 0.0
    for row in task.framed(task.joined(*zip(*[pair[:2] for pair in _pairs(folder)], strict=True))):
        tokens = torch.tensor([row])
        expected += float(torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]))
    for objective, plain in found:
        assert objective - plain == pytest.approx(0.5 * expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fine_tuning_compiles_once(folder: Path, case: str) -> None:
    """Packed batches have one shape, and the compiler traces the whole loss."""
    task, counter = prepared(folder, case, layout="packed", tokens=1024), CompileCounter()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    objective = Objective(build(task.model).train(), task)
    objective._compute = torch.compile(objective._plain, backend=counter)
    batches = [batch for step in task.batches("train", Share()).once() for batch in step.batches]
    for batch in batches:
        objective(batch).total.backward()
    assert len(batches) > 1
    assert (counter.frame_count, dict(torch._dynamo.utils.counters["graph_break"])) == (1, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "metric"),
    [("classify", "mcc"), ("numbers", "spearman"), ("slots", "f1"), ("answer", "exact"), ("choice", "accuracy")],
)
def test_learns_and_predicts(folder: Path, tmp_path: Path, case: str, metric: str) -> None:
    run = regard.train(
        recipe(folder, case, directory=str(tmp_path / "run"), steps=120), device="cpu", display=Display(quiet=True)
    )
    assert run.scores[metric] > 0.8, run.scores
    model = regard.load(run.directory, "cpu")
    text = "the dog is great in New York"
    context = f"the cat is bad in Rome . {text} ."
    given: dict[str, Any] = {
        "answer": f"where is it ?	{context}",
        "choice": "the cat is fine in Paris	Rome	Paris",
    }
    [found] = model.predict([given.get(case, text)])
    if case == "classify":
        assert found["label"] == "pos"
        assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    elif case == "numbers":
        assert found["number"] == pytest.approx(1.5, abs=0.5)
    elif case == "slots":
        assert (found["tags"], found["intent"]) == (["O"] * 5 + ["B-LOC", "I-LOC"], "pos")
        assert found["entities"] == [{"type": "LOC", "text": "New York"}]
    elif case == "answer":
        assert found["answer"] == "New York"
        assert context[found["start"] : found["end"]] == "New York"
    else:
        assert (found["option"], found["text"]) == (1, "Paris")


def test_segments_are_those_of_the_template(folder: Path) -> None:
    task = prepared(folder, "pairs", layout="padded")
    batch = next(iter(next(iter(task.batches("train", Share()).once())).batches))
    tokenizer: Tokenizer = task.tokenizers.source
    expected = {tuple(each.ids): each.type_ids for each in (tokenizer.encode(*pair) for pair in _pairs(folder))}
    text = batch.sequences["text"]
    assert isinstance(text.layout, Padded)
    lengths = text.layout.lengths_B.tolist()
    for ids, segments, length in zip(
        text.tokens.tolist(), batch.values["text.segments"].tolist(), lengths, strict=True
    ):
        assert segments[:length] == expected[tuple(ids[:length])]
        assert not any(segments[length:])


def _pairs(folder: Path) -> list[list[str]]:
    return [line.split("\t")[:2] for line in (folder / "pairs.tsv").read_text().splitlines()]


def test_a_long_context_is_read_in_windows(folder: Path) -> None:
    task: Any = prepared(folder, "answer")
    rows = task.encode(task.examples("train")[:40])
    windows = list(task._windows(task.examples("train")[:40]))
    assert len(windows) > 40  # several windows for some questions
    for row, start, end, window in zip(rows["text"], rows["start"], rows["end"], windows, strict=True):
        assert len(row) + 2 <= 20
        answer = task.examples("train")[window.question].answers[0]
        if start:
            first, last = window.offsets[start - window.first][0], window.offsets[end - window.first][1]
            assert (first, last) == (answer.start, answer.start + len(answer.text))
        else:
            inside = window.offsets[0][0] <= answer.start and answer.start + len(answer.text) <= window.offsets[-1][1]
            assert not inside


def test_prepared_data_depends_on_the_settings_that_encode_reads(folder: Path) -> None:
    chat = folder / "chat.jsonl"
    messages = [{"role": "user", "content": "where is it ?"}, {"role": "assistant", "content": "in Rome"}]
    chat.write_text(json.dumps({"messages": messages}), encoding="utf-8")
    (folder / "documents.txt").write_text("A dog. A cat. A house. A park.\n\n" * 20, encoding="utf-8")
    raw = {"kind": "text", "document": "paragraph", "train": ["documents.txt"]}
    answer, template = CASES["answer"][0], "{% for m in messages %}{{ m.content }} {% endfor %}"
    cases: list[tuple[str, dict[str, Any], list[dict[str, Any]], str]] = [
        ("encoder", CASES["answer"][1], [answer, {**answer, "context": 24}, {**answer, "stride": 2}], "wordpiece"),
        ("encoder", raw, [{"kind": "masked", "context": 20, "pairs": each} for each in ("next", "order")], "wordpiece"),
        (
            "decoder",
            {"kind": "chat", "train": [chat.name]},
            [{"kind": "instruct", "template": each} for each in (None, template)],
            "bytes",
        ),
    ]
    for family, data, settings, text in cases:
        stored = set()
        for task in settings:
            job = recipe(folder, "answer", family)
            kind = {"kind": text} if text == "bytes" else job["text"]
            job |= {"task": task, "data": {**data, "root": str(folder), "hold_out": 0.0}, "text": kind}
            made = prepare_job(make_job("job", job, {}), torch.device("cpu"))
            assert made.data is not None
            store = made.data.examples["train"].store
            stored.add(repr([store.values(name).tolist() for name in made.columns()]))
        assert len(stored) == len(settings), settings


def test_options_that_are_too_long_are_skipped(folder: Path, tmp_path: Path) -> None:
    long = {"text": "the dog " * 200, "options": ["Rome", "Paris"], "label": 0}
    lines = [*(folder / "choices.jsonl").read_text().splitlines(), json.dumps(long)]
    (tmp_path / "choices.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for tokens, kept in ((256, 240), (1_024, 241)):  # two options of 402 and 403 tokens fit into the larger step
        job = recipe(folder, "choice", tokens=tokens)
        job["data"] |= {"train": [str(tmp_path / "choices.jsonl")]}
        task = prepare_job(make_job("job", job, {}), torch.device("cpu"))
        assert task.data is not None
        about = task.data.examples["train"].store.about
        assert about["examples"] == kept
        assert sum(each["count"] for each in about["too_long"].values()) == 241 - kept
        model = build(task.model)
        for step in task.batches("train", Share()).once():
            assert all(task.loss(model, each).total.isfinite() for each in step.batches)


def test_an_answer_below_the_threshold_is_empty(folder: Path) -> None:
    for threshold, empty in ((1e9, False), (-1e9, True)):
        job = recipe(folder, "answer")
        job["task"] = {**job["task"], "threshold": threshold, "nbest": 3}
        task = prepare_job(make_job("job", job, {}), torch.device("cpu"))
        model = build(task.model).eval()
        [found] = task.predict(model, [("where is it ?", "the cat is bad in Rome .")])
        assert len(found) == 3
        assert (found[0]["answer"] == "") == empty


def test_windows_fit_into_the_positions_of_a_model_without_a_run(folder: Path) -> None:
    given: Any = prepared(folder, "answer")
    network = build(given.model.changed({"position": {"kind": "learned", "length": 40}}))
    task: Any = head_task("answer", network, given.tokenizers, {})
    windows = list(task._windows([Question("", "where is it ?", "the dog is bad in Rome . " * 30, ())]))
    assert max(len(window.tokens) for window in windows) + 2 == 40
    assert len({place for window in windows for place in window.offsets}) == 7 * 30  # the whole context


def test_the_best_spans_are_those_of_a_search_over_all() -> None:
    """Also if the best starts come after the best ends: without a threshold, every question has an answer."""
    torch.manual_seed(0)
    apart = torch.stack([torch.arange(50.0), -torch.arange(50.0)], -1)
    for scores, longest in ((torch.randn(40, 2), 30), (torch.randn(7, 2), 3), (apart, 5), (apart[:0], 5)):
        every = {
            (start, end): float(scores[start, 0] + scores[end, 1])
            for start in range(len(scores))
            for end in range(start, min(start + longest, len(scores)))
        }
        wanted = sorted(every.values(), reverse=True)[:20]
        found = best_spans(scores, longest)
        assert [score for _, score in found] == pytest.approx(wanted)
        assert [every[span] for span, _ in found] == pytest.approx(wanted)


BAD_DATA: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "one class": ("classify", {}, ["a b\tx", "c d\tx"], "x"),
    "no label": ("classify", {}, ["a b\t", "c d\t"], "empty label"),
    "empty text": ("classify", {}, ["\tx", "\ty"], "empty text"),
    "not a number": ("numbers", {}, ["a b\tnan", "c d\tmany"], "not a number"),
    "half a pair": ("pairs", {}, ["a b\t\tx", "c\t\ty"], "empty second"),
    "a number beyond float32": ("numbers", {}, ["a b\t1e300", "c d\t-1e39"], "beyond 1e\\+15"),
    "one tag": ("tag", {"kind": "columns"}, ["one O", "two O"], "at least two classes"),
    "no class but in skipped lines": ("classify", {}, ["a b\tx", "c d\t"], "empty label"),
    "a weight below zero": ("classify", {"task.weights": {"x": -1.0}}, ["a b\tx", "c d\ty"], r"^task\.weights\.x \("),
    "unequal tags": ("tag", {"kind": "columns"}, ["one O", "two"], "columns"),
    "options": ("choice", {}, ['{"text": "a", "options": ["b"], "label": 0}'], "options"),
    "lone surrogate": ("choice", {}, ['{"text": "a", "options": ["b", "\\ud83d"], "label": 0}'], "lone surrogate"),
    "weights of numbers": ("numbers", {"task.weights": "balanced"}, ["a b\t1", "c d\t2"], r"task\.weights .*classes"),
    "unknown class": ("classify", {"task.weights": {"z": 2.0}}, ["a b\tx", "c d\ty"], "z"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    case, changes, lines, said = BAD_DATA[name]
    (tmp_path / "bad").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    job = recipe(tmp_path, case)
    job["data"] |= {"train": ["bad"], "valid": []}
    job["task"] = {**job["task"], "kind": CASES[case][0]["kind"], **nested(changes).get("task", {})}
    with pytest.raises(RegardError, match=said):
        prepare_job(make_job("job", job, {}), torch.device("cpu"))


def test_a_label_that_training_lacks_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text("a dog\tmaybe\n")
    job = recipe(folder, "classify")
    job["data"]["valid"] = [str(tmp_path / "valid.tsv")]
    with pytest.raises(DataError, match="maybe"):
        prepare_job(make_job("job", job, {}), torch.device("cpu"))
    job["data"]["unseen"] = "keep"
    task = prepare_job(make_job("job", job, {}), torch.device("cpu"))
    assert task.extra_metrics(build(task.model).eval(), "valid")["f1"] == 0.0
    (tmp_path / "valid.tsv").write_text("a dog\tmaybe\na cat\tpos\n")
    job["data"]["unseen"] = "skip"
    task = prepare_job(make_job("job", job, {}), torch.device("cpu"))
    assert [example.text for example in task.examples("valid")] == ["a cat"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("case", "given"),
    [
        ("classify", [" "]),
        ("classify", [("one", "two")]),
        ("classify", [3]),
        ("pairs", ["no tab"]),
        ("tag", [""]),
        ("tag", [["a", " "]]),
        ("answer", ["no context"]),
        ("answer", [{"question": "who"}]),
        ("choice", ["one\ttwo"]),
        ("embed", [""]),
        *(
            (case, [wrong])
            for case in ("classify", "tag", "answer", "choice", "embed")
            for wrong in (3, None, {}, [[]])
        ),
    ],
)
def test_bad_inputs_are_named(folder: Path, case: str, given: list[Any]) -> None:
    task = prepared(folder, case)
    with pytest.raises(InputError, match=r"inputs\[0\]"):
        task.predict(build(task.model).eval(), given)


def test_a_text_longer_than_the_positions_is_cut(folder: Path) -> None:
    job = recipe(folder, "pairs")
    job["model"]["position"] = {"kind": "learned", "length": 12}
    task = prepare_job(make_job("job", job, {}), torch.device("cpu"))
    model = build(task.model).eval()
    assert task.predict(model, [("dog " * 50, "cat " * 50)])[0]["label"] in ("pos", "neg")
    column: Any = task.columns()["text"]
    [row] = task.framed(task.joined(["dog " * 50], ["cat " * 3]))  # type: ignore[attr-defined]
    assert len(row) == 12
    assert row.count(column.between[0]) == 2


@pytest.mark.parametrize(
    ("case", "lines", "reasons"),
    [
        ("classify", ["a dog\tpos", "a cat\t", "\tneg"], ["empty label", "empty text"]),
        ("pairs", ["a dog\tis it nice ?\tpos", "a cat\t\tneg", "a cat\tis it ?\t"], ["empty second", "empty label"]),
        ("numbers", ["a dog\t1.5", "a cat\tnan", "a cat\tinf", "a cat\t"], ["not a number"]),
        ("tag", ["dog O", "cat O O", "", "Rome B-LOC"], ["columns"]),
    ],
)
def test_bad_lines_of_validation_data_are_counted(
    folder: Path, tmp_path: Path, case: str, lines: list[str], reasons: list[str]
) -> None:
    (tmp_path / "valid").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    job = recipe(folder, case)
    job["data"]["valid"] = [str(tmp_path / "valid")]
    task = prepare_job(make_job("job", job, {}), torch.device("cpu"))
    summary = task.data.summary
    assert summary["valid"]["examples"] == 1
    notes = " ".join(note for note in summary["notes"] if note.startswith("valid, skipped"))
    assert all(reason in notes for reason in reasons), notes
    assert len(task.examples("valid")) == 1  # type: ignore[attr-defined]
