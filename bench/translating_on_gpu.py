"""Sentences per second on a GPU, compared with transformers' `generate`, with the same weights.

    PYTHONPATH=src python bench/translating_on_gpu.py [--batch 64] [--beam 4] [--tokens 32] [--runs 7] [--out FILE]

A base model with random weights (bfloat16), written by us and read by transformers as Marian. Batches of random
sentences of 32 tokens, and 32 tokens are written for each. Runs alternate; a run is one batch. Results are medians,
after two runs that do not count. The share of equal tokens shows that both do the same work: in 16 bits with random
weights, many scores are tied.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measured import environment
from transformers import AutoModelForSeq2SeqLM

import regard
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Ends, Greedy, Power, Rules
from regard.models.build import build
from regard.models.families import EncoderDecoder
from regard.weights.huggingface.directory import write_pretrained

VOCABULARY, END, PAD = 32_000, 2, 0


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("batch", 64), ("beam", 4), ("tokens", 32), ("runs", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = build(regard.preset("transformer-base", vocabulary=VOCABULARY), "cuda", torch.bfloat16).eval()
    assert isinstance(model, EncoderDecoder)
    with tempfile.TemporaryDirectory() as place:
        write_pretrained(model, place, config={"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD})
        theirs = AutoModelForSeq2SeqLM.from_pretrained(place, dtype=torch.bfloat16).cuda().eval()
    rows = torch.randint(3, VOCABULARY, (asked.batch, asked.tokens), device="cuda")
    inputs = rows.tolist()
    ends, rules = Ends(start=PAD), Rules(longest=Absolute(tokens=asked.tokens))
    searches = {f"beam {asked.beam}": Beam(size=asked.beam, length=Power(alpha=1.0), stop="best"), "greedy": Greedy()}
    results: dict[str, Any] = {}
    for name, search in searches.items():
        beams = asked.beam if isinstance(search, Beam) else 1

        def ours(search: Any = search) -> list[list[int]]:
            return [best[0].tokens for best in decode(model, inputs, ends, search, rules, batch_tokens=10**6)]

        def hugging(beams: int = beams) -> list[list[int]]:
            with torch.inference_mode():
                found = theirs.generate(
                    rows,
                    attention_mask=torch.ones_like(rows),
                    num_beams=beams,
                    do_sample=False,
                    min_new_tokens=asked.tokens,
                    max_new_tokens=asked.tokens,
                )
            return found[:, 1:].tolist()

        seconds: dict[str, list[float]] = {"regard": [], "transformers": []}
        for _ in range(asked.runs + 2):
            for who, work in (("regard", ours), ("transformers", hugging)):
                took, found = timed(work)
                seconds[who].append(took)
                results.setdefault("last", {})[who] = found
        rate = {who: asked.batch / statistics.median(taken[2:]) for who, taken in seconds.items()}
        last = results.pop("last")
        same = sum(a == b for one, two in zip(*last.values(), strict=True) for a, b in zip(one, two, strict=False))
        results[name] = {
            "sentences a second": {who: round(value) for who, value in rate.items()},
            "ratio": round(rate["regard"] / rate["transformers"], 2),
            "first run, seconds": {who: round(taken[0], 2) for who, taken in seconds.items()},
            "equal tokens": round(same / (asked.batch * asked.tokens), 3),
        }
        print(name, json.dumps(results[name]), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({**environment(), "asked": {k: v for k, v in vars(asked).items() if k != "out"},
                                         **results}, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
