"""From files to a task: a model is trained on the content of the files, and wrong input is an error."""

from __future__ import annotations

import gzip
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from data_cases import sequences_of
from huggingface_directories import SMALL as HUGGINGFACE
from huggingface_directories import randomised
from PIL import Image

import regard
from regard.data.batches import Share
from regard.data.columns import IGNORED, Batch
from regard.data.source import Source
from regard.errors import DataError, SettingsError, WeightsError
from regard.models.settings import EncoderDecoder, Vision
from regard.settings import nested
from regard.tasks.recipe import make_job
from regard.tasks.run import default_tokens, prepare_job
from regard.tasks.task import Task
from regard.text.tokenizer import Tokenizer
from regard.training.report import Display
from regard.weights.directory import load_model as load_network
from regard.weights.huggingface.directory import write_pretrained
from regard.weights.warm_start import read_start

ENGLISH = ["the dog runs", "a cat sleeps", "the cat runs fast", "a dog"]
GERMAN = ["der Hund läuft", "eine Katze schläft", "die Katze läuft schnell", "ein Hund"]
SMALL: dict[str, Any] = {"width": 16, "depth": 1, "attention": {"heads": 2}, "ffn": {"kind": "dense", "hidden": 16}}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("train.en", ENGLISH)
    write("train.de", GERMAN)
    write("valid.en", ENGLISH[:2])
    write("valid.de", GERMAN[:2])


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw a picture takes longer than all else here."""
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)


def write(name: str, lines: list[str]) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


KINDS = {"translate": "encoder-decoder", "language": "decoder", "masked": "encoder", "image": "vision"}
TEXTS = {"translate": "words", "language": "words", "masked": "wordpiece"}


def recipe(task: str, data: dict[str, Any]) -> dict[str, Any]:
    """A small job."""
    text = {"text": {"kind": TEXTS[task]}} if task in TEXTS else {}
    sight = {"image": [8, 8], "patch": 4, "channels": 3} if task == "image" else {}
    return {"task": task, "data": data, **text, "model": {"kind": KINDS[task], **SMALL, **sight}, "train": {"steps": 2}}


def ready(task: str, data: dict[str, Any], changes: dict[str, Any] | None = None) -> Task:
    return prepare_job(make_job("job", recipe(task, data), nested(changes or {})), CPU)


def test_the_size_of_a_step_follows_the_device_and_the_model() -> None:
    """A run stores what was chosen, so that a resume on another device takes the same steps."""
    gpu = torch.device("cuda")
    names = {"transformer-tiny": 512, "transformer-base": 512, "llama-tiny": 2_048, "bert-tiny": 2_048, "vit-28": 2_048}
    for name, tokens in names.items():
        assert (default_tokens(regard.preset(name), CPU), default_tokens(regard.preset(name), gpu)) == (tokens, 16_384)
    for changes, tokens in (
        ({}, 2_048),
        ({"train.tokens": 300}, 300),
        ({"train.micro": 99_999}, 2_048),
        ({"task.context": 1_000}, 4_000),  # four windows
    ):
        made = ready("language", {"train": ["train.en"]}, changes)
        assert made.data.train.tokens == tokens
    write("mine.toml", tomli_w.dumps(recipe("translate", FILES)).splitlines())
    run = regard.train("mine.toml", display=Display(quiet=True), device="cpu")
    assert "tokens = 2048" in (run.directory / "config.toml").read_text()
    assert regard.resume(run.directory, {"train.steps": 3}, display=Display(quiet=True)).step == 3


def test_examples_are_held_out_if_there_is_no_validation_data() -> None:
    """The same ones each time, and never one that trains too, not even a copy of it."""
    lines = [f"sentence {number % 300}" for number in range(600)]
    write("many.en", lines)
    write("many.de", lines[::-1])
    write("copy.en", lines[::-1])
    for kind, files in (("parallel", ["many.en", "many.de"]), ("text", ["many.en"])):
        task = "translate" if kind == "parallel" else "language"
        made, again = (ready(task, {"kind": kind, "train": files}) for _ in range(2))
        assert made.data.fingerprints == again.data.fingerprints
        train, valid = (made.data.examples[split].store.about["examples"] for split in ("train", "valid"))
        assert train + valid == 600
        assert 10 < valid < 60
        sources = [Source(made.data.settings, "train"), Source(made.data.settings, "valid")]
        ours, held = ({next(iter(example.sides().values())) for example in source} for source in sources)
        assert len(ours | held) == 300
        assert not ours & held
    for data, valid in (
        ({"train": ["many.en", "many.de"], "hold_out": 0.0}, False),
        ({"train": ["train.en", "train.de"]}, False),  # four pairs, of which none is chosen
        (FILES, True),
    ):
        assert ready("translate", data).has("valid") == valid
    write("long.txt", lines * 30)
    made = ready("language", {"train": ["long.txt"], "document": "file", "hold_out": 0.5}, {"task.context": 8})
    assert made.has("valid")
    write("held.toml", tomli_w.dumps(recipe("translate", {"train": ["many.en", "many.de"]})).splitlines())
    run = regard.train("held.toml", display=Display(quiet=True), device="cpu")
    assert run.scores["loss"] > 0
    assert regard.resume(run.directory, {"train.steps": 3}, display=Display(quiet=True)).step == 3


def test_parts_of_a_model_are_frozen() -> None:
    write("mine.toml", tomli_w.dumps(recipe("translate", FILES)).splitlines())
    changes = {"train.freeze": ["encoder", "decoder.0.ffn", "*.norm.*", "source.tokens.weight"]}
    weights = []
    for name, more in (("before", STILL), ("after", {"train.steps": 3})):
        settings = {**changes, **more, "train.directory": name}
        run = regard.train("mine.toml", settings, display=Display(quiet=True))
        weights.append(dict(load_network(run.directory).named_parameters()))
    before, after = weights
    changed = {name for name in before if not torch.allclose(before[name], after[name], atol=1e-9)}
    assert changed
    assert not [name for name in changed if name.startswith(("encoder.", "decoder.0.ffn.", "source.tokens"))]
    assert any(name.startswith("decoder.0.attention") for name in changed)
    for wrong, words in (("encodr", r"did you mean encoder\?"), ("*", "no parameter to train")):
        with pytest.raises(SettingsError, match=rf"train\.freeze .*{words}"):
            regard.train("mine.toml", {"train.freeze": [wrong], "train.directory": "no"}, display=Display(quiet=True))


def test_callbacks_see_each_step_and_evaluation_and_stop_a_run() -> None:
    write("mine.toml", tomli_w.dumps(recipe("translate", FILES)).splitlines())
    steps: list[dict[str, float]] = []
    evaluations: list[dict[str, float]] = []
    changes = {"train.steps": 4, "train.evaluate_every": 2}
    quiet = Display(quiet=True)
    regard.train("mine.toml", changes, display=quiet, on_step=steps.append, on_evaluate=evaluations.append)
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert {"loss", "rate", "epochs", "tokens"} <= set(steps[0])
    assert [record["step"] for record in evaluations] == [2, 4]
    assert evaluations[-1]["loss"] > 0
    changes["train.directory"] = "stopped"
    run = regard.train("mine.toml", changes, display=quiet, on_step=lambda record: record["step"] < 3)
    assert (run.reason, run.step) == ("on_step", 3)
    assert regard.resume("stopped", display=quiet).step == 4


def test_a_recipe_is_a_dict_too() -> None:
    tables = recipe("translate", FILES)
    tables["model"] = EncoderDecoder(**SMALL)
    run = regard.train(tables | {"train.steps": 1}, display=Display(quiet=True))
    assert (run.directory, run.step) == (Path("runs/translate"), 1)
    Path("file").touch()
    for wrong, changes, message in (
        (3, {}, r"recipe \(3\) must be a TOML file"),
        (tables, 3, r"changes \(3\) must be a dict"),
        (tables | {"trian": {}}, {}, "unknown setting trian"),
        (tables, {"train.directory": "file/run"}, r"file/run cannot be written \(Not a directory"),
        ({"base": "recipe"}, {}, r"recipe \(recipe\) does not exist"),
    ):
        with pytest.raises(regard.RegardError, match=message):
            regard.train(wrong, changes)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"threads \(100000\) must be from 1 to 1,024"):
        regard.train(tables | {"train.directory": "other"}, threads=100_000)


def tokens_of(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token(number) for number in range(tokenizer.size)]


FILES: dict[str, Any] = {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"]}


def batch_of(made: Task, split: Any = "train") -> Batch:
    """All examples of a split: they fit into one step."""
    (step,) = made.batches(split, Share()).once()
    (batch,) = step.batches
    return batch


def pairs_of(made: Task) -> set[tuple[str, str]]:
    """The pairs of a batch as texts."""
    batch = batch_of(made)
    source, target = batch.sequences["source"], batch.sequences["target"]
    sources = [made.tokenizers.source.decode(ids) for ids in sequences_of(source.tokens, source.layout)]
    labels = [ids for ids in sequences_of(batch.values["target.next"], target.layout) if ids[0] != IGNORED]
    return {*zip(sources, [made.tokenizers.target.decode(ids) for ids in labels], strict=True)}


def shown(batch: Batch) -> Any:
    return zip(batch.values["pixels"], batch.values["label"], strict=True)


def test_two_files_of_text() -> None:
    made = ready("translate", FILES)
    assert pairs_of(made) == {*zip(ENGLISH, GERMAN, strict=True)}
    words = {word for line in (*ENGLISH, *GERMAN) for word in line.split()}
    assert {*tokens_of(made.tokenizers.source)} >= words
    assert isinstance(made.model, EncoderDecoder)
    assert made.model.vocabulary == made.tokenizers.source.size == len(words) + 5, "and five special tokens"
    assert (made.head, made.labels) == (None, {})
    # A source has an end, a target a start and an end.
    tokens = sum(len(line.split()) for line in (*ENGLISH, *GERMAN)) + 3 * len(ENGLISH)
    counts = {"skipped": 0, "removed": 0, "too_long": 0, "unseen": 0, "unknown": 0.0}
    assert made.data.summary["train"] == {"examples": 4, "tokens": tokens, **counts}
    assert made.data.summary["valid"]["examples"] == 2
    assert made.data.summary["notes"] == []
    assert ready("translate", FILES).data.fingerprints == made.data.fingerprints
    write("train.de", [*GERMAN[:-1], "ein Hut"])
    assert ready("translate", FILES).data.fingerprints["train"] != made.data.fingerprints["train"]
    write("train.de", GERMAN)
    # A table gives the same pairs as two files.
    with gzip.open("pairs.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{german}\tnoise\t{english}\n" for english, german in zip(ENGLISH, GERMAN, strict=True))
    data = {"kind": "parallel-tsv", "source": 3, "target": 1, "train": ["pairs.tsv.gz"]}
    made = ready("translate", data)
    assert pairs_of(made) == {*zip(ENGLISH, GERMAN, strict=True)}
    assert not made.has("valid")
    assert "valid" not in made.data.summary


def test_wrong_input_is_refused_before_any_work() -> None:
    text = {"train": ["train.en"]}
    paint("images/red", (250, 0, 0), 1)
    images = {"kind": "image-folder", "train": ["images"]}
    for task, data, changes, message in (
        ("translate", FILES, {"model.vocabulary": 10}, r"model\.vocabulary \(10\)"),
        ("translate", {"kind": "text", **text}, {}, r"data\.kind \(text\).*Text.*Pair"),
        ("translate", FILES, {"train.select": "bleu"}, r"train\.select \(bleu\).*loss, perp"),
        ("translate", FILES, {"train.layout": "packed", "train.row": 2}, r"longer than train\.row \(2\)"),
        ("translate", {**FILES, "valid": ["valid.en", "gone.de"]}, {}, r"gone\.de does not exist"),
        ("language", text, {"model.position": {"kind": "learned", "length": 64}}, r"model\.position\.length=256"),
        ("language", text, {"train.tokens": 200}, r"task\.context \(256\) exceeds train\.tokens \(200\)"),
        ("masked", text, {"train.micro": 100}, r"task\.context \(128\) exceeds train\.micro \(100\)"),
        ("image", images, {"model.channels": 2}, r"model\.channels \(2\)"),
    ):
        with pytest.raises((SettingsError, DataError), match=message):
            ready(task, data, changes)
    assert ready("translate", FILES, {"model.vocabulary": 64}).model.vocabulary == 64  # type: ignore[union-attr]


def test_examples_that_are_left_out_are_in_the_summary() -> None:
    Path("train.en").write_bytes(b"the dog runs\n\na cat\na b c d e f g h i\nthe dog runs\n")
    Path("train.de").write_bytes(b"der Hund\nnichts\nkaputt \xff\na b\nder Hund\n")
    data = {"train": ["train.en", "train.de"], "longest": 8, "filters": {"duplicates": "pair"}}
    made = ready("translate", data)
    counts = made.data.summary["train"]
    assert (counts["examples"], counts["skipped"], counts["removed"], counts["too_long"]) == (1, 2, 1, 1)
    assert made.data.summary["notes"] == [
        "train, skipped: 1 × is empty; first train.en, line 2",
        "train, skipped: 1 × is not UTF-8; first train.de, line 3 (byte 8 is 0xff)",
        "train, removed: 1 × is a duplicate; first train.en, line 5 (the dog runs | der Hund)",
        "train, too long, skipped: 1 × has a source of over 8 tokens; first train.en, line 4",
    ]


def test_limits_of_lengths() -> None:
    """The longest pair has four words: five tokens of a source, and as many that a decoder reads."""
    for limit in ({"train.tokens": 4}, {"model.position": {"kind": "learned", "length": 4}}):
        counts = ready("translate", FILES, limit).data.summary["train"]
        assert (counts["examples"], counts["too_long"]) == (3, 1)
    assert ready("translate", FILES, {"train.tokens": 5}).data.summary["train"]["too_long"] == 0
    assert ready("translate", FILES, {"text.size": 5 + 3}).data.summary["train"]["unknown"] > 0.2
    # Longer documents are split, and no text is lost.
    made = ready("masked", {"train": ["train.en"]}, {"task.context": 4})
    (note,) = made.data.summary["notes"]
    assert note.startswith("train, too long, split: 3 × has a text of over 4 tokens; first train.en, line 1")
    assert made.data.summary["train"]["examples"] > len(ENGLISH)


def test_raw_text_in_windows_and_document_by_document() -> None:
    data = {"train": ["train.en"], "valid": ["valid.en"]}
    windows = ready("language", data, {"task.context": 5})
    batch = batch_of(windows)
    # All lines, with an end token after each; the rest at the end is not a window.
    words = " </s> ".join(ENGLISH).split()
    ids = [windows.tokenizers.source.id(word) for word in (*words, "</s>")]
    assert batch.sequences["text"].tokens.tolist() == [ids[0:5], ids[5:10], ids[10:15]]
    assert batch.values["text.next"].tolist() == [ids[1:6], ids[6:11], ids[11:16]]
    alone = ready("language", data, {"task.across": False})
    batch = batch_of(alone)
    read = [
        alone.tokenizers.source.decode(ids)
        for ids in sequences_of(batch.sequences["text"].tokens, batch.sequences["text"].layout)
    ]
    assert {*read} == {*ENGLISH}


def test_hidden_words_are_those_of_the_text() -> None:
    data = {"train": ["train.en"]}
    task = {"kind": "masked", "rate": 0.5, "hidden": 1.0, "random": 0.0}
    made = ready("masked", data, {"task": task})
    assert (made.head, [*made.model.heads]) == ("masked", ["masked"])  # type: ignore[union-attr]
    batch = batch_of(made)
    mask, cells = made.tokenizers.source.role("mask"), batch.sequences["text"].tokens.flatten()
    wanted = batch.values["labels"] != IGNORED
    assert 0 < int(wanted.sum()) == int((cells == mask).sum())
    cells[batch.values["chosen"][wanted]] = batch.values["labels"][wanted]
    rows = sequences_of(cells.reshape(batch.sequences["text"].tokens.shape), batch.sequences["text"].layout)
    assert {made.tokenizers.source.decode(ids) for ids in rows} == {*ENGLISH}
    # A model keeps the head that it has.
    heads = {"words": {"kind": "masked"}, "mood": {"kind": "classification", "classes": 3}}
    made = ready("masked", data, {"model.heads": heads})
    assert (made.head, [*made.model.heads]) == ("words", ["words", "mood"])  # type: ignore[union-attr]


def paint(folder: str, colour: tuple[int, int, int], count: int) -> None:
    Path(folder).mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (8, 8), colour).save(Path(folder) / f"{number}.png")


def test_a_folder_of_images_and_a_label_that_training_never_saw() -> None:
    paint("train/red", (250, 0, 0), 2)
    paint("train/blue", (0, 0, 200), 1)
    paint("valid/blue", (0, 0, 100), 1)
    Path("train/red/broken.png").write_bytes(b"no image")
    data = {"kind": "image-folder", "train": ["train"], "valid": ["valid"]}
    made = ready("image", data)
    assert (made.labels["label"], made.head) == (("blue", "red"), "label")
    assert isinstance(made.model, Vision)
    assert made.model.heads["label"].classes == 2  # type: ignore[union-attr]
    batch = batch_of(made)
    seen = {(int(label), *image[:, 3, 5].tolist()) for image, label in shown(batch)}
    assert seen == {(1, 250, 0, 0), (0, 0, 0, 200)}
    assert batch_of(made, "valid").values["label"].tolist() == [0]
    # Four patches and the class token.
    assert made.data.summary["train"]["tokens"] == 3 * 5
    (note,) = made.data.summary["notes"]
    assert note.startswith("train, skipped: 1 × does not decode as an image; first ")
    # A label that does not occur in training.
    paint("other/green", (0, 100, 0), 1)
    data["valid"] = ["other"]
    with pytest.raises(DataError, match="green"):
        ready("image", data)
    made = ready("image", {**data, "unseen": "keep"})
    assert made.data.summary["valid"]["unseen"] == 1
    model: Any = regard.build(made.model).eval()
    with torch.no_grad():
        loss = made.loss(model, batch_of(made, "valid"))
    metrics = made.metrics(float(loss.total), float(loss.weight), {k: float(v) for k, v in loss.sums.items()})
    assert metrics["accuracy"] == 0, "any prediction is a mistake"


def trained(made: dict[str, Any], changes: dict[str, Any] | None = None) -> Path:
    path = Path(f"job{len(list(Path().glob('job*.toml')))}.toml")
    path.write_text(tomli_w.dumps(made))
    return regard.train(path, changes, device="cpu", display=Display(quiet=True)).directory


STILL = {"train.optimizer.rate": 1e-12, "train.steps": 1}
"""Almost no training: the weights stay those that training starts from."""


def rows(directory: Path) -> dict[str, torch.Tensor]:
    """The embedding of each token."""
    model: Any = load_network(directory)
    table = (model.source if hasattr(model, "source") else model.embedding).tokens.weight.detach()
    return dict(zip(tokens_of(Tokenizer.load(directory)), table, strict=True))


def test_training_starts_from_a_run_and_new_words_get_new_rows() -> None:
    old = trained(recipe("translate", FILES))
    write("train.en", [*ENGLISH, "a green bird"])
    write("train.de", [*GERMAN, "ein grüner Vogel"])
    new = trained(recipe("translate", FILES), {"train.start": str(old), **STILL})
    before, after = rows(old), rows(new)
    fresh = {"green", "bird", "grüner", "Vogel"}
    assert after.keys() - before.keys() == fresh
    for token, row in before.items():
        torch.testing.assert_close(after[token], row, atol=1e-9, rtol=0)
    mean = torch.stack([*before.values()]).mean(0)
    for token in fresh:
        assert (after[token] - mean).abs().max() < 3 * torch.stack([*before.values()]).std()
    # Without [text] and [model], those of the start are used.
    bare = recipe("translate", FILES)
    del bare["text"], bare["model"]
    new = trained(bare, {"train.start": str(old), **STILL})
    assert Tokenizer.load(new) == Tokenizer.load(old)
    assert load_network(new).settings == load_network(old).settings
    other = {"train.start": str(old), "train.directory": "other", "model.depth": 2}
    with pytest.raises(WeightsError, match=r"depth is 2 here and 1 there.*model\.depth=1"):
        trained(recipe("translate", FILES), other)
    assert not Path("other").exists(), "a refused run leaves nothing"


def test_the_default_rate_follows_the_size_of_the_weights_of_the_start() -> None:
    old = trained(recipe("translate", FILES))
    bare = recipe("translate", FILES)
    del bare["text"], bare["model"]
    start = read_start(old)
    matrices = [
        value for name, value in start.tensors.items() if re.match(r"(en|de)coder\.\d", name) and value.dim() > 1
    ]
    expected = (
        1.2 / start.settings.width * math.sqrt(sum(float(each.square().mean()) for each in matrices) / len(matrices))
    )
    larger = replace(start, tensors={name: 8 * value for name, value in start.tensors.items()})
    for given, rate in ((start, expected), (larger, 8 * expected)):
        job = make_job("job", bare, nested({"train.start": str(old)}))
        assert prepare_job(job, CPU, given).data.train.optimizer.rate == pytest.approx(rate, rel=0.06), "two digits"
    job = make_job("job", bare, nested({"train.start": str(old), "train.optimizer.rate": 0.5}))
    assert prepare_job(job, CPU, start).data.train.optimizer.rate == 0.5


def test_a_start_without_a_tokenizer_needs_one() -> None:
    write_pretrained(randomised(HUGGINGFACE["gpt2"]), Path("theirs"))
    bare = recipe("language", {"train": ["train.en"]})
    del bare["model"], bare["text"]
    job = make_job("job", bare, nested({"train.start": "theirs", "task.context": 9}))
    with pytest.raises(SettingsError, match=r"train.start \(theirs\) has no tokenizer; name one: text.kind=file"):
        prepare_job(job, CPU, read_start("theirs"))
