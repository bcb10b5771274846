"""Recurrence, convolution and self-attention on the same tasks, data, tokens, training loop and search.

    python bench/comparison.py [--data DIR] [--minutes 4] [--jobs 12] [--only grammar copy-20/lstm] [--device cuda]
    python bench/comparison.py --only costs --device cuda      time of a layer; alone, since it is measured by the clock
    python bench/comparison_page.py              writes docs/comparison.md and its plots from the result files

Each task and model is one job: a process that trains for its share of `--minutes` and writes one JSON file into
`--work`, also while it trains. `--jobs` of them run side by side, the longest first; no model is compiled, so that
none gains by it. A second call runs the jobs that have no complete result yet, and resumes those that were
interrupted. After each job, all results are collected in one file (`--out`, by default
bench/results/DATE-comparison.json). DATA contains multi30k/ and fashion-mnist/; without it, their jobs are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measured import environment

import regard
from regard.blocks.layout import Padded
from regard.data.embedded import grammar_pairs
from regard.look.alignment import Aligner, GoldLinks, align, score_links
from regard.models.settings import AnyModel
from regard.settings import parse
from regard.tasks.run import evaluate_run
from regard.training.report import Display
from regard.use.evaluation import evaluate_texts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
LENGTHS = (20, 40, 80)
"""Tokens in a sequence of the task `copy`."""
TOKENS, EXAMPLES = 40, 20_000
LAYER_LENGTHS, LAYER_TOKENS, LAYER_DRAWS = (32, 128, 512, 2048), 8192, 7
"""Of the task `costs`: lengths of the sequences, tokens of a batch, measurements of which the median is taken."""
WINDOW = 5
"""The local attention sees fewer than this many states on each side."""
TARGETS = {"grammar": 0.95, "multi30k": 0.6, "copy": 0.99, "digits": 0.95, "fashion-mnist": 0.9}
"""Validation accuracy (of tokens, of images) whose time is reported."""
SHARES = {"multi30k": 1.0, "fashion-mnist": 0.5, "grammar": 0.35, "copy": 0.3, "digits": 0.15, "costs": 0.0}
"""The part of `--minutes` that each job of a task trains for: the same for all models."""
MUON = {"kind": "muon", "rate": 0.02, "rest": {"rate": 5e-3}}


def text_models(width: int, dropout: float, tied: list[str]) -> dict[str, dict[str, Any]]:
    """Models of similar size with the same tables."""
    common = {"width": width, "dropout": dropout, "tied": tied}
    lstm = {"kind": "recurrent", "depth": 2, "decoder_depth": 3, **common}
    attention = {"heads": 8}
    models: dict[str, dict[str, Any]] = {
        "self-attention": {
            "kind": "encoder-decoder",
            "depth": 3,
            "norm_place": "pre",
            "position": {"kind": "sinusoidal"},
            **common,
            "attention": attention,
            "ffn": {"kind": "dense", "hidden": 2 * width},
            "embedding_scale": True,
        },
        "convolution": {"kind": "convolutional", "depth": 4, **common},
    }
    for score in ("general", "dot", "additive", "last", "sum"):
        models["lstm" if score == "general" else f"lstm-{score}"] = {**lstm, "attention": {"score": score}}
    models["lstm-local"] = {**lstm, "attention": {"score": "general", "window": WINDOW}}
    return models


def image_models(size: int, patch: int) -> dict[str, dict[str, Any]]:
    images = {"image": [size, size], "channels": 1, "dropout": 0.1}
    vit = {"kind": "vision", "patch": patch, "width": 128, "depth": 4, "attention": {"heads": 4}, "norm_place": "pre"}
    return {
        "self-attention": {**vit, "ffn": {"kind": "dense", "hidden": 256}, **images},
        "convolution": {"kind": "resnet", **images},
        "lstm": {"kind": "image-lstm", "patch": patch, **images},
    }


def jobs(data: Path | None, work: Path, width: int, tokens: int) -> dict[str, dict[str, Any]]:
    """The recipe of each job, by `task/model`. `width` and `tokens` are those of the grammar and of copy; Multi30k has
    twice the width and four times the tokens."""
    words = {"kind": "words", "shared": False}
    plain = {"compile": "off", "save_minutes": 60}
    train = {
        "tokens": tokens,
        "layout": "padded",
        "optimizer": MUON,
        "schedule": {"kind": "linear", "warmup": 50},
        **plain,
    }
    found: dict[str, dict[str, Any]] = {}
    for name, model in text_models(width, 0.0, []).items():
        task = {"kind": "translate", "smoothing": 0.0}
        found[f"grammar/{name}"] = {
            "task": task,
            "data": {"kind": "grammar"},
            "text": words,
            "model": model,
            "train": train,
        }
        for length in LENGTHS:
            if name in ("lstm-dot", "lstm-additive", "lstm-local"):
                continue
            folder = str(work / f"copy-{length}")
            files = {split: [f"{split}.tsv"] for split in ("train", "valid", "test")}
            found[f"copy-{length}/{name}"] = {
                "task": task,
                "data": {"kind": "parallel-tsv", "root": folder, **files},
                "text": words,
                "model": model,
                "train": train,
            }
        if name in ("self-attention", "convolution", "lstm"):
            found[f"costs/{name}"] = {"model": {**model, "depth": 1}, "train": {"tokens": LAYER_TOKENS}}
    digits = {"examples": 64, "optimizer": {"kind": "adamw", "rate": 2e-3}, **plain}
    for name, model in image_models(8, 2).items():
        found[f"digits/{name}"] = {"task": "image", "data": {"kind": "digits"}, "model": model, "train": digits}
    if data is not None:
        names = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
        pairs = {split: [f"{name}.lc.norm.tok.{side}.gz" for side in ("en", "de")] for split, name in names.items()}
        rates = {"optimizer": {**MUON, "rest": {"rate": 2e-3}}, "schedule": {"kind": "linear", "warmup": 300}}
        for name, model in text_models(2 * width, 0.3, ["source", "target", "output"]).items():
            found[f"multi30k/{name}"] = {
                "task": "translate",
                "text": {"kind": "bpe", "size": 10_000, "shared": True},
                "model": model,
                "data": {"languages": ["en", "de"], "root": str(data / "multi30k"), **pairs},
                "train": {**train, "tokens": 4 * tokens, "average": 5, **rates},
            }
        folder = {"kind": "idx", "root": str(data / "fashion-mnist")}
        parts = {"train": "train", "test": "t10k"}
        files = {part: [f"{name}-images-idx3-ubyte.gz", f"{name}-labels-idx1-ubyte.gz"] for part, name in parts.items()}
        for name, model in image_models(28, 4).items():
            found[f"fashion-mnist/{name}"] = {
                "task": "image",
                "data": {**folder, **files},
                "model": model,
                "train": {**digits, "examples": 256},
            }
    return found


def write_copies(folder: Path, length: int) -> None:
    """Random tokens, and the same tokens: each one must be found again over the length of the sequence."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True)
    draw = random.Random(length)
    for split, count in (("train", EXAMPLES), ("valid", 500), ("test", 1000)):
        rows = [" ".join(f"t{draw.randrange(TOKENS)}" for _ in range(length)) for _ in range(count)]
        (folder / f"{split}.tsv").write_text("".join(f"{row}\t{row}\n" for row in rows), encoding="utf-8")


def target_of(task: str) -> float:
    return TARGETS[family_of(task)]


def family_of(task: str) -> str:
    """The task without the length of its sequences."""
    return task.rstrip("-0123456789")


def run(name: str, recipe: dict[str, Any], work: Path, minutes: float, device: str | None) -> dict[str, Any]:
    """Trains one job, or resumes it, and measures it."""
    task, _ = name.split("/")
    directory = work / "runs" / name
    minutes *= SHARES[family_of(task)]
    budget = {"train.minutes": minutes, "train.directory": str(directory)}
    train = recipe["train"]
    step = f"{train['tokens']} tokens" if "tokens" in train else f"{train['examples']} images"
    about = {**environment(), "minutes": minutes, "step": step, "path": path_length(recipe["model"])}
    if not torch.cuda.is_available():
        about["load"] = round(os.getloadavg()[0], 1)
    if task == "costs":
        return {**about, **layer_times(recipe["model"], device)}

    def log(kind: str) -> list[dict[str, Any]]:
        lines = (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if record.get("kind") == kind]

    def curve() -> list[tuple[float, int, float]]:
        return [(round(each["seconds"], 2), each["step"], each["accuracy"]) for each in log("valid")]

    def note(seen: Any) -> None:
        write(name, work, {**about, "curve": curve(), "valid": seen, "partial": True})

    quiet = Display(quiet=True)
    if (directory / "config.toml").is_file():
        trained = regard.resume(directory, device=device, display=quiet, on_evaluate=note)
    else:
        trained = regard.train(recipe, budget, device=device, display=quiet, on_evaluate=note)
    speeds = [record["tokens_per_second"] for record in log("train")]
    rates = [speed * each["examples"] / each["tokens"] for speed, each in zip(speeds, log("train"), strict=True)]
    reached = [seconds for seconds, _, accuracy in curve() if accuracy >= target_of(task)]
    loaded = regard.load(directory, device=device)
    on_gpu = next(loaded.network.parameters()).is_cuda
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {
        **about,
        "parameters": sum(each.numel() for each in loaded.network.parameters()),
        "steps": trained.step,
        "tokens_per_second": round(median(speeds), 1) if speeds else None,
        "examples_per_second": round(median(rates), 1) if speeds else None,
        "seconds_to_target": reached[0] if reached else None,
        "peak_bytes": peak,
        "curve": curve(),
        "valid": trained.scores,
    }
    write(name, work, {**found, "partial": True})
    return {**found, **quality(task, loaded, recipe)}


def layer_times(model: dict[str, Any], device: str | None) -> dict[str, Any]:
    """Milliseconds of a forward and backward pass for 1,000 tokens, by the length of the sequences."""
    encoder = regard.build(parse(AnyModel, {**model, "vocabulary": 8}), device=device).train().encoder
    place, times = next(encoder.parameters()).device, []
    for length in LAYER_LENGTHS:
        x = torch.randn(LAYER_TOKENS // length, length, model["width"], device=place)
        seconds = []
        for _ in range(LAYER_DRAWS + 2):  # the first ones load kernels
            if x.is_cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            encoder(x, Padded(len(x), length)).sum().backward()
            if x.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        times.append((length, 1e6 * median(seconds[2:]) / LAYER_TOKENS))
    return {"width": model["width"], "tokens": LAYER_TOKENS, "draws": LAYER_DRAWS, "times": times}


def write(name: str, work: Path, result: dict[str, Any]) -> None:
    path = work / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def is_complete(name: str, work: Path) -> bool:
    path = work / "results" / f"{name}.json"
    return path.is_file() and "partial" not in json.loads(path.read_text(encoding="utf-8"))


def quality(task: str, loaded: Any, recipe: dict[str, Any]) -> dict[str, Any]:
    """Of images the accuracy on the test split; of copies the share of exact ones; of translations BLEU in all and by
    the length of the source, exact sentences, and on the grammar the alignment error rate."""
    if not isinstance(loaded, regard.Translator):
        return {"test_accuracy": evaluate_run(loaded.directory, "test")[1]["accuracy"]}
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
    if family_of(task) == "copy":  # TER of long wrong texts would take minutes
        return {"exact": sum(map(str.__eq__, written, references)) / len(references)}
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


PATHS = {"recurrent": "n", "image-lstm": "n", "convolutional": "n / (k − 1)", "resnet": "n / (k − 1)"}
"""Steps between two tokens that are n apart, inside one stack (Vaswani et al. 2017, table 1)."""


def path_length(model: dict[str, Any]) -> str:
    return PATHS.get(model["kind"], "1")


def collect(work: Path, out: Path) -> Path | None:
    """All results of a folder as one file."""
    found = {
        str(path.relative_to(work / "results").with_suffix("")): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((work / "results").glob("*/*.json"))
    }
    if not found:
        return None
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--width", type=int, default=128, help="of the models of the grammar and of copy")
    parser.add_argument("--tokens", type=int, default=2048, help="target tokens of a step of these models")
    parser.add_argument("--jobs", type=int, default=1, help="jobs side by side")
    parser.add_argument("--only", nargs="*", default=[], help="tasks, or task/model")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "comparison")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{time.strftime('%Y-%m-%d')}-comparison.json")
    parser.add_argument("--device")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    work = given.work.resolve()
    recipes = jobs(None if given.data is None else given.data.resolve(), work, given.width, given.tokens)
    if given.one:
        write(given.one, work, run(given.one, recipes[given.one], work, given.minutes, given.device))
        return
    unknown = [name for name in given.only if not any(name in (job, job.split("/")[0]) for job in recipes)]
    if unknown:
        parser.error(f"--only ({unknown[0]}) is not a job; choose from {', '.join(recipes)}")
    for length in LENGTHS:
        write_copies(work / f"copy-{length}", length)
    chosen = [name for name in recipes if not given.only or {name, name.split("/")[0]} & {*given.only}]
    order = [*SHARES]  # the longest first
    chosen.sort(key=lambda name: order.index(family_of(name.partition("/")[0])))
    options = [f"--minutes={given.minutes}", f"--work={work}", f"--width={given.width}", f"--tokens={given.tokens}"]
    options += [] if given.data is None else [f"--data={given.data}"]
    options += [] if given.device is None else [f"--device={given.device}"]

    def start(name: str) -> None:
        if is_complete(name, work):
            return
        started = time.monotonic()
        ended = subprocess.run([sys.executable, __file__, *options, f"--one={name}"], check=False).returncode
        state = "failed; the next call tries it again" if ended else "done"
        print(f"{name} {state} after {time.monotonic() - started:.0f} s", flush=True)
        collect(work, given.out)

    with ThreadPoolExecutor(given.jobs) as threads:
        list(threads.map(start, chosen))
    print(collect(work, given.out))


if __name__ == "__main__":
    main()
