"""What a trained model is measured on: the splits of its own recipe, or files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.base_settings import Split
from regard.data.examples import Pair
from regard.data.lines import BadLine, read_lines
from regard.data.recipe import data_settings
from regard.data.settings import DataSettings, Pairs
from regard.data.sources import Source
from regard.errors import DataError, SettingsError
from regard.settings import Table
from regard.tasks.job import make_job
from regard.tasks.ready import Tell, make_ready
from regard.tasks.translator import Translator
from regard.text.pair import TokenizerPair
from regard.training.distribution import connected
from regard.training.evaluate import evaluate
from regard.training.objective import Objective
from regard.training.precision import numbers
from regard.weights.directory import read_config
from regard.weights.labels import load_labels
from regard.weights.load import load as load_network


@dataclass(frozen=True)
class Exam:
    """Texts to be translated in one direction, with their references."""

    name: str
    """The direction, such as `en-de`; empty where nobody named the languages."""
    sources: list[str] | None
    """None where translations are given, and nobody said of what."""
    references: list[str]
    to: str | None = None
    """The language to write, for a model that must be told."""

    def answers(self, model: Translator, beam: int, as_used: bool) -> list[str]:
        """The model's translations. Unless `as_used`, each text is one piece, as models are measured everywhere."""
        assert self.sources is not None
        to = self.to if model.tagged else None
        found: list[str] = model.translate(self.sources, beam=beam, to=to, split=as_used, keep=as_used)
        return found


def task_of(config: Table) -> str | None:
    """The kind of job that a run was trained for; None: its `config.toml` does not say."""
    task = config.get("task")
    kind = task.get("kind") if isinstance(task, Mapping) else task
    return kind if isinstance(kind, str) else None


def exams(
    config: Table, split: Split | None, changes: Mapping[str, Any] | None = None, limit: int | None = None
) -> tuple[Split, list[Exam]]:
    """The pairs of a run's own split, one exam for each direction, at most `limit` pairs in each."""
    data = _data(config, changes)
    if not isinstance(data, Pairs):
        raise SettingsError(f"data.kind ({data.kind}) holds no pairs to translate; give --input and --reference")
    chosen = _chosen(data, split)
    ways = max(len(data.directions), 1)
    found: dict[str | None, list[Pair]] = {}
    for pair in islice(Source(data, chosen), None if limit is None else limit * ways):
        assert isinstance(pair, Pair)
        found.setdefault(pair.to, []).append(pair)
    names = {(target if data.both else None): f"{source}-{target}" for source, target in data.directions}
    return chosen, [
        Exam(names.get(to, ""), [pair.source for pair in pairs], [pair.target for pair in pairs], to)
        for to, pairs in found.items()
    ]


def figures_on(
    directory: Path,
    split: Split | None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    tell: Tell = lambda text: None,
) -> tuple[Split, dict[str, float]]:
    """The figures of any task on a split, as validation gives them: loss, accuracy, perplexity."""
    config = {name: table for name, table in read_config(directory).items() if name != "prepared"}
    job = make_job(directory.name, config, {"data": dict(changes or {})})
    chosen = _chosen(job.data, split)
    with connected(device) as workers:
        network = load_network(directory, workers.device)
        tokenizers = None if job.task.kind == "image" else TokenizerPair.load(directory)
        labels = load_labels(directory).get("label")
        ready = make_ready(job, workers.device, None, tokenizers, tell, (chosen,), labels)
        types = numbers(job.train.precision, workers.device)
        objective = Objective(network, ready.task)
        return chosen, evaluate(objective, ready.task, chosen, workers, types, job.train.micro)


def _data(config: Table, changes: Mapping[str, Any] | None) -> DataSettings:
    if "data" not in config:
        raise SettingsError("the model does not say what it was trained on; give --input and --reference")
    return data_settings(config, changes)


def _chosen(data: DataSettings, split: Split | None) -> Split:
    """The split that was asked for; else the test data, or, where there are none, the validation data."""
    if split is not None:
        return split
    return "test" if "test" in data.splits else "valid"


def read_texts(file: str) -> list[str]:
    """The lines of a file, of which none may be left out: line n belongs to line n of another file."""
    texts: list[str] = []
    for number, line in enumerate(read_lines(file), 1):
        if isinstance(line, BadLine):
            raise DataError(f"{file}, line {number:,} {line.reason} ({line.detail}); correct it")
        texts.append(line)
    return texts
