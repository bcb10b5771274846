"""Quality of the shipped models: cased sacreBLEU and chrF on four sets, in both directions.

    python bench/shipped.py DATA [--names de-en en-de] [--beam 5] [--limit N] [--threads 2] [--int8] [--out FILE]

DATA contains newstest/, europarl-en-de/, tatoeba-en-de/ and multi30k/. Each line is translated as by `regard
translate`; none is in the training data. The script exits with 1 if a result is below its floor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measured import environment, lines

import regard
from regard.use.evaluation import corpus_metrics

FLOORS = {
    "de-en": {"newstest2013": 18, "Europarl dev": 28, "Tatoeba dev": 38, "Multi30k test2016": 32},
    "en-de": {"newstest2013": 14, "Europarl dev": 22, "Tatoeba dev": 30, "Multi30k test2016": 28},
}


def sets(data: Path) -> dict[str, dict[str, list[str]]]:
    """The texts of each set by language."""
    found = {
        "newstest2013": {code: lines(data / f"newstest/newstest2013.{code}") for code in ("en", "de")},
        "Multi30k test2016": {code: lines(data / f"multi30k/test_2016_flickr.{code}.gz") for code in ("en", "de")},
    }
    for name in ("Europarl", "Tatoeba"):
        rows = [line.split("\t") for line in lines(data / f"{name.lower()}-en-de/dev.tsv")]
        found[f"{name} dev"] = {"en": [row[0] for row in rows], "de": [row[1] for row in rows]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--names", nargs="+", default=list(FLOORS))
    parser.add_argument("--model", help="a directory in place of the shipped one")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, Any] = {}
    below = False
    texts = sets(options.data)
    for name in options.names:
        source, target = name.split("-")
        model: Any = regard.load(options.model or name, device=options.device, int8=options.int8)
        for corpus, floor in FLOORS[name].items():
            sources, references = (texts[corpus][code][: options.limit] for code in (source, target))
            start = time.perf_counter()
            written = model.translate(sources, to=target, beam=options.beam)
            seconds = time.perf_counter() - start
            metrics = corpus_metrics(written, references, ("bleu", "chrf"))
            below |= metrics["bleu"].score < floor
            results.setdefault(name, {})[corpus] = {
                "bleu": round(metrics["bleu"].score, 2),
                "chrf": round(metrics["chrf"].score, 2),
                "floor": floor,
                "sentences": len(sources),
                "seconds": round(seconds, 1),
                "signature": metrics["bleu"].signature,
            }
            print(name, corpus, json.dumps(results[name][corpus]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({**environment(), **results}, indent=1) + "\n")
    return int(below)


if __name__ == "__main__":
    sys.exit(main())
