"""Speed of preparing parallel texts, compared with the tokenizer alone, and memory as the corpus grows.

    python bench/preparing.py --pairs FILE.tsv.xz [--lines 200000] [--rounds 3] [--out result.json]

FILE contains `source<TAB>target`. *prepare* reads and decompresses it, encodes both sides, and writes and flushes the
arrays; *raw* is `encode_batch_fast` of `tokenizers` alone, with the texts in memory and the ids fetched, in chunks of
the same size (which is faster than all at once). They alternate on the same cores with the same BPE of 16,000 tokens;
results are medians. Memory is the peak of RssAnon (Linux) of a fresh process, without mapped files.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers

from regard.data.prepare import CHUNK, learn_tokenizers, prepare
from regard.data.settings import ParallelTsv
from regard.data.source import Source
from regard.data.store import Store
from regard.models.settings import EncoderDecoder
from regard.tasks.translate import Translate, TranslateTask
from regard.text.settings import Bpe
from regard.text.tokenizer import TokenizerPair

SIZE = 16_000


def source_of(file: Path) -> Source:
    return Source(ParallelTsv(train=(str(file),)), "train")


def shortened(file: Path, lines: int, place: Path) -> Path:
    """The first lines of a file, in xz as it is; the file itself if it has no more."""
    with lzma.open(file, "rt", encoding="utf-8") as whole, lzma.open(place, "wt", encoding="utf-8") as part:
        found = sum(part.write(line) > 0 for line in islice(whole, lines))
        return place if found == lines and next(whole, None) is not None else file


def prepared(file: Path, pair: TokenizerPair, folder: Path) -> Store:
    """From nothing: an empty cache each time."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        os.environ["REGARD_CACHE"] = cache
        task = TranslateTask(Translate(), EncoderDecoder(), pair)
        return prepare(source_of(file), task.columns(), task.encode, {})


def raw(inner: tokenizers.Tokenizer, texts: list[list[str]]) -> int:
    """Encodes each side, and fetches the ids; gives how many there are."""
    count = 0
    for side in texts:
        for start in range(0, len(side), CHUNK):
            found = inner.encode_batch_fast(side[start : start + CHUNK], add_special_tokens=False)
            count += sum(map(len, [encoding.ids for encoding in found]))
    return count


def timed(job: Callable[[], object]) -> float:
    begun = time.perf_counter()
    job()
    return time.perf_counter() - begun


def peak_memory(file: Path, tokenizer: Path, folder: Path) -> dict[str, float]:
    """RssAnon in MiB before preparing and at its peak, in a process of its own."""
    command = [sys.executable, __file__, "--pairs", str(file), "--measure-memory", str(tokenizer), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure_memory(file: Path, tokenizer: Path, folder: Path) -> None:
    pair, seen, over = TokenizerPair.load(tokenizer), [anonymous()], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            seen.append(anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    prepared(file, pair, folder)
    over.set()
    watcher.join()
    print(json.dumps({"before_mib": round(seen[0], 1), "peak_mib": round(max(seen), 1)}))


def anonymous() -> float:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def measure(file: Path, lines: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    os.environ["REGARD_CACHE"] = str(folder / "learned")
    whole = shortened(file, lines, folder / "whole.tsv.xz")
    pair = learn_tokenizers(source_of(whole), Bpe(size=SIZE), most=100_000)
    inner = tokenizers.Tokenizer.from_str(pair.source.json)
    inner.encode_special_tokens = True
    examples = list(source_of(whole))
    texts = [[example.source for example in examples], [example.target for example in examples]]
    del examples
    jobs: dict[str, Callable[[], object]] = {
        "prepare": lambda: prepared(whole, pair, folder),
        "raw": lambda: raw(inner, texts),
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name in list(jobs) if number % 2 == 0 else list(jobs)[::-1]:
            times[name].append(timed(jobs[name]))
            print(f"{name} {times[name][-1]:.2f} s", flush=True)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    tokens = raw(inner, texts)
    rows: list[dict[str, Any]] = [
        {
            "pairs": len(texts[0]),
            "tokens": tokens,
            "prepare_s": [round(value, 2) for value in times["prepare"]],
            "raw_s": [round(value, 2) for value in times["raw"]],
            "prepare_tokens_per_s": round(tokens / seconds["prepare"]),
            "raw_tokens_per_s": round(tokens / seconds["raw"]),
            "prepare_over_raw": round(seconds["raw"] / seconds["prepare"], 3),
        }
    ]
    pair.save(folder)
    for part in (lines // 4, lines):
        some = shortened(file, part, folder / f"{part}.tsv.xz")
        rows.append({"pairs": part, **peak_memory(some, folder, folder)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=200_000, help="pairs that are read at the most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure-memory", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_memory:
        measure_memory(arguments.pairs, *arguments.measure_memory)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(arguments.pairs, arguments.lines, arguments.rounds, Path(folder))
    for row in rows:
        print(
            "  ".join(f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in row.items())
        )
    if arguments.out:
        from measured import environment  # with torch, which would count as memory

        hardware = {"hardware": f"{os.cpu_count()} CPU cores", "tokenizers": tokenizers.__version__}
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        about = json.dumps(environment() | hardware)
        arguments.out.write_text(f'{{"environment": {about},\n "rows": [\n  {lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
