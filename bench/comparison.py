"""Recurrence, convolution and self-attention on the same tasks, data, tokens, training loop and search.

    python bench/comparison.py [--data DIR] [--minutes 5] [--only grammar recall-20/lstm] [--device cuda]
    python bench/comparison.py --write           writes docs/comparison.md and its plots from the result files

Each task and model is one job: a process that trains for `--minutes` and writes one JSON file into `--work`. A second
call runs the jobs that have no result yet, and resumes the one that was interrupted. At the end, all results are
collected in bench/results/DATE-comparison.json. DATA contains multi30k/ and fashion-mnist/; without it, their jobs are
left out.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measured import environment

import regard
from regard.data.embedded import grammar_pairs
from regard.look.alignment import Aligner, GoldLinks, align, score_links
from regard.training.report import Display
from regard.use.evaluation import evaluate_texts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
LENGTHS = (10, 20, 40, 80)
"""Pairs in a sequence of the recall task."""
KEYS, VALUES, EXAMPLES = 40, 40, 20_000
TARGETS = {"grammar": 0.95, "multi30k": 0.6, "recall": 0.99, "digits": 0.95, "fashion-mnist": 0.9}
"""Validation accuracy (of tokens, of images) whose time is reported."""
MUON = {"kind": "muon", "rate": 0.02, "rest": {"rate": 5e-3}}


def text_models(width: int, dropout: float) -> dict[str, dict[str, Any]]:
    """Models of similar size; `tied = []`, so that all have the same tables."""
    common = {"width": width, "dropout": dropout, "tied": []}
    lstm = {"kind": "recurrent", "depth": 2, "decoder_depth": 3, **common}
    attention = {"heads": 8}
    models: dict[str, dict[str, Any]] = {
        "self-attention": {
            "kind": "encoder-decoder",
            "depth": 3,
            "norm_place": "pre",
            "position": {"kind": "rotary"},
            **common,
            "attention": attention,
            "ffn": {"kind": "dense", "hidden": 2 * width},
            "embedding_scale": True,
        },
        "convolution": {"kind": "convolutional", "depth": 4, **common},
    }
    for score in ("general", "dot", "additive", "last", "sum"):
        models["lstm" if score == "general" else f"lstm-{score}"] = {**lstm, "attention": {"score": score}}
    return models


def image_models(size: int, patch: int) -> dict[str, dict[str, Any]]:
    images = {"image": [size, size], "channels": 1, "dropout": 0.1}
    vit = {"kind": "vision", "patch": patch, "width": 128, "depth": 4, "attention": {"heads": 4}, "norm_place": "pre"}
    return {
        "self-attention": {**vit, "ffn": {"kind": "dense", "hidden": 256}, **images},
        "convolution": {"kind": "resnet", **images},
    }


def jobs(data: Path | None, work: Path) -> dict[str, dict[str, Any]]:
    """The recipe of each job, by `task/model`."""
    words = {"kind": "words", "shared": False}
    train = {"tokens": 2048, "layout": "padded", "optimizer": MUON, "schedule": {"kind": "linear", "warmup": 50}}
    found: dict[str, dict[str, Any]] = {}
    for name, model in text_models(128, 0.0).items():
        task = {"kind": "translate", "smoothing": 0.0}
        found[f"grammar/{name}"] = {
            "task": task,
            "data": {"kind": "grammar"},
            "text": words,
            "model": model,
            "train": train,
        }
        for length in LENGTHS:
            if name in ("lstm-dot", "lstm-additive"):
                continue
            folder = str(work / f"recall-{length}")
            files = {split: [f"{split}.tsv"] for split in ("train", "valid", "test")}
            found[f"recall-{length}/{name}"] = {
                "task": task,
                "data": {"kind": "parallel-tsv", "root": folder, **files},
                "text": words,
                "model": model,
                "train": train,
            }
    digits = {"examples": 64, "optimizer": {"kind": "adamw", "rate": 2e-3}}
    for name, model in image_models(8, 2).items():
        found[f"digits/{name}"] = {"task": "image", "data": {"kind": "digits"}, "model": model, "train": digits}
    if data is not None:
        names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
        pairs = {split: [f"{name}.lc.norm.tok.{side}.gz" for side in ("en", "de")] for split, name in names.items()}
        for name, model in text_models(256, 0.3).items():
            found[f"multi30k/{name}"] = {
                "task": "translate",
                "text": {"kind": "bpe", "size": 10_000},
                "model": model,
                "data": {"languages": ["en", "de"], "root": str(data / "multi30k"), **pairs},
                "train": {**train, "tokens": 4096},
            }
        folder = {"kind": "idx", "root": str(data / "fashion-mnist")}
        parts = {"train": "train", "test": "t10k"}
        files = {part: [f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz"] for part, name in parts.items()}
        for name, model in image_models(28, 4).items():
            found[f"fashion-mnist/{name}"] = {
                "task": "image",
                "data": {**folder, **files},
                "model": model,
                "train": digits,
            }
    return found


def write_recall(folder: Path, length: int) -> None:
    """Sources `k1 v1 k2 v2 … ? k` with different keys, and the value of the last key: recall over any distance."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True)
    draw = random.Random(length)
    for split, count in (("train", EXAMPLES), ("valid", 500), ("test", 1000)):
        rows = []
        for _ in range(count):
            keys = draw.sample(range(max(KEYS, 2 * length)), length)
            values = [draw.randrange(VALUES) for _ in keys]
            asked = draw.randrange(length)
            told = " ".join(f"k{key} v{value}" for key, value in zip(keys, values, strict=True))
            rows.append(f"{told} ? k{keys[asked]}\tv{values[asked]}\n")
        (folder / f"{split}.tsv").write_text("".join(rows), encoding="utf-8")


def target_of(task: str) -> float:
    return TARGETS["recall" if task.startswith("recall") else task]


def run(name: str, recipe: dict[str, Any], work: Path, minutes: float, device: str | None) -> dict[str, Any]:
    """Trains one job, or resumes it, and measures it."""
    task, _ = name.split("/")
    directory, started = work / "runs" / name, time.monotonic()
    curve: list[tuple[float, int, float]] = []
    budget = {"train.minutes": minutes, "train.directory": str(directory)}

    def note(seen: Any) -> None:
        curve.append((round(time.monotonic() - started, 2), seen["step"], seen["accuracy"]))

    quiet = Display(quiet=True)
    if (directory / "config.toml").is_file():
        trained = regard.resume(directory, device=device, display=quiet, on_evaluate=note)
    else:
        trained = regard.train(recipe, budget, device=device, display=quiet, on_evaluate=note)
    log = [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    speeds = [line["tokens_per_second"] for line in log if line.get("kind") == "train"]
    reached = [seconds for seconds, _, accuracy in curve if accuracy >= target_of(task)]
    loaded = regard.load(directory, device=device)
    on_gpu = next(loaded.network.parameters()).is_cuda
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        **environment(),
        "minutes": minutes,
        "parameters": sum(each.numel() for each in loaded.network.parameters()),
        "steps": trained.step,
        "tokens_per_second": round(median(speeds), 1) if speeds else None,
        "seconds_to_target": reached[0] if reached else None,
        "peak_bytes": peak,
        "path": path_length(recipe["model"], task),
        "curve": curve,
        "valid": trained.scores,
        **quality(task, loaded, recipe),
    }


def quality(task: str, loaded: Any, recipe: dict[str, Any]) -> dict[str, Any]:
    """BLEU in all and by the length of the source, exact sentences, and on the grammar the alignment error rate."""
    if not isinstance(loaded, regard.Translator):
        return {}
    if task == "grammar":
        pairs = list(islice(grammar_pairs("test"), 1000))
        texts = [(pair.source, pair.target) for pair in pairs]
    elif task == "multi30k":
        from measured import lines

        root = Path(recipe["data"]["root"])
        texts = list(zip(*(lines(root / name) for name in recipe["data"]["test"]), strict=True))
    else:
        rows = (Path(recipe["data"]["root"]) / "test.tsv").read_text(encoding="utf-8").splitlines()
        texts = [tuple(row.split("\t")) for row in rows]  # type: ignore[misc]
    sources, references = ([pair[side] for pair in texts] for side in (0, 1))
    beam = 5 if task == "multi30k" else 1
    written = loaded.translate(sources, beam=beam, keep=False)
    report = evaluate_texts(written, references, sources, tokenize="none" if task == "multi30k" else "13a", worst=0)
    found: dict[str, Any] = {
        "bleu": report.metrics["bleu"].score,
        "exact": report.exact,
        "by_length": [[row.first, row.last, row.sentences, row.bleu] for row in report.lengths],
    }
    if task == "grammar" and "decoder.0.cross.weights" in regard.Study(loaded).names:
        split = [(" ".join(pair.source_tokens), " ".join(pair.target_tokens)) for pair in pairs]
        gold = [GoldLinks(frozenset(each.alignment), frozenset((*each.alignment, *each.possible))) for each in pairs]
        found["aer"] = score_links(align(Aligner(loaded), split), gold).error
    return found


def path_length(model: dict[str, Any], task: str) -> str:
    """Steps between two tokens that are n apart, inside one stack (Vaswani et al. 2017, table 1)."""
    if model["kind"] in ("recurrent",):
        return "n"
    if model["kind"] == "convolutional":
        return "n / (kernel − 1), at most the depth"
    return "depth of the stages" if model["kind"] == "resnet" else "1"


def collect(work: Path) -> Path | None:
    """All results of a folder as one dated file."""
    found = {
        str(path.relative_to(work / "results").with_suffix("")): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((work / "results").glob("*/*.json"))
    }
    if not found:
        return None
    out = RESULTS / f"{time.strftime('%Y-%m-%d')}-comparison.json"
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return out


def write_page() -> None:
    """docs/comparison.md and its plots, from the newest result of each job."""
    found: dict[str, Any] = {}
    for path in sorted(RESULTS.glob("*-comparison.json")):
        found |= json.loads(path.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit("bench/results has no *-comparison.json; run python bench/comparison.py first")
    tasks: dict[str, dict[str, Any]] = {}
    for name, result in found.items():
        task, model = name.split("/")
        tasks.setdefault(task, {})[model] = result
    lines = [
        "# Recurrence, convolution, self-attention",
        "",
        "Generated by `python bench/comparison.py --write` from `bench/results/*-comparison.json`; do not edit.",
        "All models have the same tokens, data, loop and search, and the same time. [predecessors](predecessors.md)",
        "describes them.",
        "",
    ]
    for task, models in tasks.items():
        lines += [f"## {task}", "", *_table(task, models), ""]
        if any("by_length" in result for result in models.values()):
            lines += [*_lengths(models), ""]
        if plot := _plot(task, models):
            lines += [f"![Validation accuracy over time, {task}](images/{plot})", ""]
    (ROOT / "docs" / "comparison.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _table(task: str, models: dict[str, Any]) -> list[str]:
    head = ["model", "valid accuracy", "test BLEU", "exact", "AER", "parameters", f"s to {target_of(task)}"]
    head += ["tokens/s", "memory", "path length"]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    formats = {"bleu": ".1f", "exact": ".1%", "aer": ".1%"}
    for model, each in models.items():
        cells = [model, f"{each['valid']['accuracy']:.4f}"]
        cells += [f"{each[key]:{form}}" if key in each else "" for key, form in formats.items()]
        cells += [f"{each['parameters']:,}", str(each["seconds_to_target"] or "not reached")]
        cells += [f"{each['tokens_per_second'] or 0:,.0f}", f"{each['peak_bytes'] / 2**20:,.0f} MiB", each["path"]]
        rows.append(f"| {' | '.join(cells)} |")
    about = ("hardware", "minutes", "date", "commit")
    measured = sorted({", ".join(f"{key} {each[key]}" for key in about) for each in models.values()})
    return [*rows, "", f"Measured: {'; '.join(measured)}."]


def _lengths(models: dict[str, Any]) -> list[str]:
    """BLEU by the number of words of the source."""
    buckets = sorted({(row[0], row[1]) for each in models.values() for row in each.get("by_length", ())}, key=str)
    names = [f"{first or 'up'} to {last}" if last else f"{first} or more" for first, last in buckets]
    rows = [f"| BLEU by words of the source | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for model, each in models.items():
        scores = {(row[0], row[1]): row[3] for row in each.get("by_length", ())}
        rows.append(f"| {model} | {' | '.join(f'{scores[key]:.1f}' if key in scores else '' for key in buckets)} |")
    return rows


def _plot(task: str, models: dict[str, Any]) -> str | None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5))
    for model, each in models.items():
        if each["curve"]:
            axes.plot([row[0] for row in each["curve"]], [row[2] for row in each["curve"]], marker=".", label=model)
    axes.set_xlabel("seconds")
    axes.set_ylabel("validation accuracy")
    axes.legend(fontsize=8)
    figure.tight_layout()
    name = f"comparison-{task}.png"
    figure.savefig(ROOT / "docs" / "images" / name, dpi=100)
    pyplot.close(figure)
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", nargs="*", default=[], help="tasks, or task/model")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "comparison")
    parser.add_argument("--device")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write_page()
        return
    work = given.work.resolve()
    recipes = jobs(None if given.data is None else given.data.resolve(), work)
    if given.one:
        result = run(given.one, recipes[given.one], work, given.minutes, given.device)
        path = work / "results" / f"{given.one}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return
    unknown = [name for name in given.only if not any(name in (job, job.split("/")[0]) for job in recipes)]
    if unknown:
        parser.error(f"--only ({unknown[0]}) is not a job; choose from {', '.join(recipes)}")
    for length in LENGTHS:
        write_recall(work / f"recall-{length}", length)
    for name in recipes:
        wanted = not given.only or name in given.only or name.split("/")[0] in given.only
        if not wanted or (work / "results" / f"{name}.json").is_file():
            continue
        print(name, flush=True)
        options = [f"--minutes={given.minutes}", f"--work={work}", f"--one={name}"]
        options += [] if given.data is None else [f"--data={given.data}"]
        options += [] if given.device is None else [f"--device={given.device}"]
        if subprocess.run([sys.executable, __file__, *options], check=False).returncode:
            print(f"{name} failed; the next call tries it again", flush=True)
    print(collect(work))


if __name__ == "__main__":
    main()
