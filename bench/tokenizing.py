"""Speed of training and using tokenizers, compared with the library alone.

    python bench/tokenizing.py --texts FILE [--lines 40000] [--out result.json]

FILE is text or a TSV of texts, plain or compressed with xz or gzip; each cell is a text. Each result is the best of
`--rounds`; ours and the library's alternate. Speeds use wall-clock time, ratios use CPU time, which other work on the
machine affects less.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import tokenizers
from measured import environment

from regard.text.settings import AnyTokenizer, Bpe, ByteBpe, Bytes, Characters, Unigram, WordPiece, Words
from regard.text.train import train_tokenizer

KINDS: list[AnyTokenizer] = [ByteBpe(), Bpe(), Unigram(), WordPiece(), Words(), Characters(), Bytes()]


def texts_of(path: Path) -> Iterator[str]:
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield from line.rstrip("\n").split("\t")


def best(rounds: int, *jobs: Callable[[], object]) -> list[tuple[float, float]]:
    """Shortest time of each job by the clock, and least CPU time; they run in turn, each round from the next one on."""
    times: list[list[tuple[float, float]]] = [[] for _ in jobs]
    for first in range(rounds):
        for number in (*range(first % len(jobs), len(jobs)), *range(first % len(jobs))):
            clock, processor = time.perf_counter(), time.process_time()
            result = jobs[number]()
            times[number].append((time.perf_counter() - clock, time.process_time() - processor))
            del result
    return [(min(clock for clock, _ in found), min(processor for _, processor in found)) for found in times]


def measure(settings: AnyTokenizer, texts: list[str], rounds: int) -> dict[str, float | str | int]:
    begun = time.perf_counter()
    tokenizer = train_tokenizer(settings, texts)
    training = time.perf_counter() - begun
    raw = tokenizers.Tokenizer.from_str(tokenizer.json)
    raw.encode_special_tokens = True
    ours, theirs, whole, same = best(
        rounds,
        lambda: tokenizer.ids(texts),
        lambda: [encoding.ids for encoding in raw.encode_batch(texts, add_special_tokens=False)],
        lambda: tokenizer.encode_batch(texts),
        lambda: raw.encode_batch(texts),
    )
    tokens = sum(map(len, tokenizer.ids(texts)))
    return {
        "kind": settings.kind,
        "size": tokenizer.size,
        "train_s": round(training, 2),
        "tokens": tokens,
        "ids_tokens_per_s": round(tokens / ours[0]),
        "raw_tokens_per_s": round(tokens / theirs[0]),
        "ids_over_raw": round(theirs[1] / ours[1], 3),
        "encode_batch_over_raw": round(same[1] / whole[1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=40_000, help="texts that are read")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    texts = list(islice(texts_of(arguments.texts), arguments.lines))
    print(f"{len(texts):,} texts, {sum(map(len, texts)):,} characters")
    about = environment() | {"hardware": f"{os.cpu_count()} CPU cores", "tokenizers": tokenizers.__version__}
    rows = []
    for settings in KINDS:
        rows.append(measure(settings, texts, arguments.rounds))
        print(
            "  ".join(
                f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in rows[-1].items()
            )
        )
    if arguments.out:
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        arguments.out.write_text(
            f'{{"environment": {json.dumps(about)},\n "rows": [\n  {lines}\n]}}\n', encoding="utf-8"
        )


if __name__ == "__main__":
    main()
