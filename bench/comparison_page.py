"""Writes docs/comparison.md and its plots from the results of `comparison.py`.

    python bench/comparison_page.py [RESULTS.json …]      by default all bench/results/*-comparison.json, in their order

A later file replaces the results of an earlier one, job by job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl

mpl.use("Agg")
from comparison import RESULTS, ROOT, TARGETS, family_of
from matplotlib import pyplot
from matplotlib.axes import Axes

Results: TypeAlias = Mapping[str, dict[str, Any]]
"""The result of each model on one task."""
STYLES = {
    "self-attention": ("#0072B2", "-", "o"),
    "lstm": ("#009E73", "-", "s"),
    "convolution": ("#D55E00", "-", "^"),
    "lstm-dot": ("#009E73", "--", "v"),
    "lstm-additive": ("#009E73", ":", "D"),
    "lstm-local": ("#009E73", "-.", "P"),
    "lstm-last": ("#777777", "--", "x"),
    "lstm-sum": ("#777777", ":", "+"),
}
"""Colour, line and marker of each model."""
TITLES = {
    "copy": "Copies of long sequences",
    "grammar": "Translation: the grammar",
    "multi30k": "Translation: Multi30k, English to German",
    "digits": "Images: digits (8 × 8)",
    "fashion-mnist": "Images: Fashion-MNIST (28 × 28)",
}
TEXTS = {
    "copy": "n random tokens, of 40 kinds, are written again. Without attention, all of them must pass through one\n"
    "vector. A sequence is exact if all of its tokens are right.",
    "grammar": "The embedded English–German corpus, on 1,000 test sentences.",
    "multi30k": "29,000 pairs of captions; BLEU on test_2016_flickr (lower case, tokenized), beam 5. On one H200, in\n"
    "4.4 minutes, larger models reach 42.4 (recipe `multi30k-en-de`) and 37.9 (`multi30k-lstm`, general score).",
    "digits": "1,797 images of scikit-learn.",
    "fashion-mnist": "60,000 images. On one CPU core, 5 minutes hold one to six passes over them;\n"
    "[vision.md](vision.md) has the results of a GPU.",
}
QUALITIES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "test_accuracy": ("test accuracy", lambda each: f"{each['test_accuracy']:.2%}"),
    "bleu": ("test BLEU", lambda each: f"{each['bleu']:.1f}"),
    "exact": ("exact", lambda each: f"{each['exact']:.1%}"),
    "aer": ("alignment error", lambda each: f"{each['aer']:.1%}"),
}
MAIN = {"copy": "exact", "grammar": "exact", "multi30k": "bleu", "digits": "test_accuracy"}
"""The measure of a task in the summary."""
FEW = 10
"""Sentences of a length whose BLEU is shown."""
COSTS = {
    "self-attention": ("n² · d", "1", "1"),
    "lstm": ("n · d²", "n", "n"),
    "convolution": ("k · n · d²", "1", "n / (k − 1)"),
}
"""Operations of a layer, steps one after the other, and the longest path between two of n tokens (Vaswani et al. 2017,
table 1; without dilation). d: width, k: kernel."""


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]


def order(model: str) -> int:
    return [*STYLES, model].index(model)


def measured(results: Collection[dict[str, Any]]) -> str:
    """Where and how the results were measured: the different values of each entry."""
    loads = sorted({each["load"] for each in results if "load" in each})
    shown = {"hardware": "{}", "step": "{} a step", "minutes": "{:.3g} minutes"}
    parts = []
    for key, text in {**shown, "torch": "torch {}", "date": "{}"}.items():
        values = dict.fromkeys(text.format(each[key]) for each in results if each.get(key))
        parts += [" or ".join(values)] if values else []
    parts += [f"load {loads[0]:g} to {loads[-1]:g}"] if loads else []
    return f"Measured: {', '.join(parts)}."


def plot(name: str, across: str, up: str, draw: Callable[[Axes], None]) -> str:
    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    draw(axes)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "images" / f"comparison-{name}.png", dpi=100)
    pyplot.close(figure)
    return f"![{up} over {across}](images/comparison-{name}.png)"


def line(axes: Axes, model: str, x: list[float], y: list[float]) -> None:
    colour, style, marker = STYLES[model]
    axes.plot(x, y, color=colour, linestyle=style, marker=marker, markersize=4, label=model)


def by_doubling(axes: Axes, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, map(str, lengths))
    axes.set_xticks([], minor=True)


def costs(results: Results) -> list[str]:
    """Table 1 of the paper, with the time that a layer takes."""
    lengths = [length for length, _ in next(iter(results.values()))["times"]]
    head = ["layer", "operations", "steps in sequence", "longest path", *(f"n = {length}" for length in lengths)]
    rows = [[model, *COSTS[model], *(f"{time:.2f}" for _, time in each["times"])] for model, each in results.items()]
    one = next(iter(results.values()))

    def draw(axes: Axes) -> None:
        for model, each in results.items():
            line(axes, model, *map(list, zip(*each["times"], strict=True)))
        by_doubling(axes, lengths)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")

    return [
        "## What a layer costs",
        "",
        f"n tokens of width d = {one['width']}, kernel k = 3. On the right: milliseconds for 1,000 tokens, for a",
        f"forward and backward pass of one encoder layer; {one['tokens']:,} tokens at once, in sequences of n; the",
        f"median of {one['draws']} passes. The layer of self-attention contains its feed-forward layer. The LSTM reads",
        "in both directions, with half of the width each.",
        "",
        *table(head, rows),
        "",
        measured(results.values()),
        "",
        plot("costs", "tokens of a sequence", "ms for 1,000 tokens", draw),
        "",
    ]


def task_table(family: str, tasks: Mapping[str, Results]) -> list[str]:
    """All measures of the models on the tasks of a family."""
    every, several = [each for results in tasks.values() for each in results.values()], len(tasks) > 1
    kinds = [key for key in QUALITIES if any(key in each for each in every) and (family, key) != ("copy", "bleu")]
    speed = "tokens" if any("bleu" in each for each in every) else "examples"
    head = [*(["n"] if several else []), "model", "valid accuracy", *(QUALITIES[kind][0] for kind in kinds)]
    head += ["parameters", f"seconds to {TARGETS[family]:g}", "steps", f"{speed}/s", "memory", "path"]
    rows = []
    for task, results in tasks.items():
        for model, each in results.items():
            cells = [*([task.rpartition("-")[2]] if several else []), model, f"{each['valid']['accuracy']:.4f}"]
            cells += [QUALITIES[kind][1](each) if kind in each else "" for kind in kinds]
            reached = each["seconds_to_target"]
            cells += [f"{each['parameters']:,}", "not reached" if reached is None else f"{reached:.0f}"]
            cells += [f"{each['steps']:,}", f"{each[f'{speed}_per_second'] or 0:,.0f}"]
            rows.append([*cells, f"{each['peak_bytes'] / 2**20:,.0f} MiB", each["path"]])
    return table(head, rows)


def by_length(results: Results) -> list[str]:
    """BLEU by the number of words of the source; lengths of a few sentences are left out."""
    found = [row for each in results.values() for row in each["by_length"]]
    buckets = sorted({(row[0], row[1] or 0) for row in found if row[2] >= FEW})
    names = [f"{first or 'up'} to {last}" if last else f"{first} or more" for first, last in buckets]
    rows = []
    for model, each in results.items():
        scores = {(row[0], row[1] or 0): f"{row[3]:.1f}" for row in each["by_length"]}
        rows.append([model, *(scores.get(bucket, "") for bucket in buckets)])
    return table(["BLEU by words of the source", *names], rows)


def section(family: str, tasks: Mapping[str, Results]) -> list[str]:
    lines = [f"## {TITLES[family]}", "", TEXTS[family], "", *task_table(family, tasks), ""]
    lines += [measured([each for results in tasks.values() for each in results.values()]), ""]
    for task, results in tasks.items():
        if family in ("grammar", "multi30k"):
            lines += [*by_length(results), ""]

        def draw(axes: Axes, results: Results = results) -> None:
            for model, each in results.items():
                line(axes, model, [row[0] for row in each["curve"]], [row[2] for row in each["curve"]])

        length = f", n = {task.rpartition('-')[2]}" if len(tasks) > 1 else ""
        lines += [plot(task, "seconds", f"validation accuracy{length}", draw), ""]
    if len(tasks) > 1:

        def over(axes: Axes) -> None:
            for model in sorted({model for results in tasks.values() for model in results}, key=order):
                points = [(int(task.rpartition("-")[2]), tasks[task][model]) for task in tasks if model in tasks[task]]
                line(axes, model, [length for length, _ in points], [each["exact"] for _, each in points])
            by_doubling(axes, [int(task.rpartition("-")[2]) for task in tasks])
            axes.set_ylim(0, 1.03)

        lines += [plot(family, "tokens n of a sequence", "share of exact copies", over), ""]
    return lines


def summary(families: Mapping[str, Mapping[str, Results]]) -> list[str]:
    """One row for each task: the models of the three families, and an LSTM without attention."""
    shown = [*COSTS, "lstm-last"]
    rows = []
    for family, tasks in families.items():
        kind = MAIN.get(family, "test_accuracy")
        for task, results in tasks.items():
            cells = [QUALITIES[kind][1](results[model]) if kind in results.get(model, {}) else "" for model in shown]
            rows.append([task, QUALITIES[kind][0], *cells])
    return table(["task", "measure", *shown], rows)


def page(found: Results) -> str:
    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    for name in sorted(found, key=lambda name: order(name.partition("/")[2])):
        task, model = name.split("/")
        if "partial" not in found[name]:
            tasks.setdefault(task, {})[model] = found[name]
    layers = tasks.pop("costs", None)
    families: dict[str, dict[str, Results]] = {}
    for task in sorted(tasks, key=lambda task: ([*TITLES].index(family_of(task)), len(task), task)):
        families.setdefault(family_of(task), {})[task] = tasks[task]
    missing = [title for family, title in TITLES.items() if family not in families]
    lines = [
        "# Recurrence, convolution, self-attention",
        "",
        "Generated by `python bench/comparison_page.py` from `bench/results/*-comparison.json`; do not edit.",
        "",
        "On each task, all models get the same data, batches, optimizer, search and training time.",
        "[predecessors.md](predecessors.md) describes them. In the same time, a model that computes slowly takes fewer",
        "steps. No model is compiled.",
        "",
        "- *lstm* attends by the general score, *lstm-dot* and *lstm-additive* by another one; *lstm-local* attends to",
        "  near states only. *lstm-last* and *lstm-sum* have no attention: each step reads one vector of the source.",
        "- *seconds to* is the time from the start of training to the first evaluation with this validation accuracy.",
        "- *tokens/s* counts target tokens, in training; *examples/s* counts images.",
        "- *memory* is that of the GPU at its peak; on a CPU, that of the process with Python and PyTorch.",
        "- *path* is the number of layers and steps between two tokens that are n apart, inside one stack; for images",
        "  an upper bound for the convolution, whose stages halve the grid.",
        "- *load* is the mean number of processes that wanted to compute when a job started on a CPU. The jobs had the",
        "  highest priority and one core each; the other processes had the lowest one.",
        "",
        *summary(families),
        "",
    ]
    lines += [f"Not measured yet: {'; '.join(missing)}.", ""] if missing else []
    lines += costs(layers) if layers else []
    for family, each in families.items():
        lines += section(family, each)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    paths = [Path(each) for each in sys.argv[1:]] or sorted(RESULTS.glob("*-comparison.json"))
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        found |= json.loads(path.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit("bench/results has no *-comparison.json; run python bench/comparison.py first")
    (ROOT / "docs" / "comparison.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
