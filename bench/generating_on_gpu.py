"""Tokens per second of a decoder on a GPU, compared with transformers' `generate`, with the same weights.

    PYTHONPATH=src python bench/generating_on_gpu.py [--model gpt2] [--rows 1 64] [--prompt 128] [--tokens 512]
        [--rounds 3] [--peers dynamic static] [--profile] [--host FILE] [--out FILE]

A preset with random weights in bfloat16, written by us and read by transformers. Prompts are random tokens, no text
ends early, and the time includes the prompts. Greedy, and sampling from the 50 most likely tokens. Results are medians
over the rounds, after one call that does not count (it records graphs, or compiles); systems take turns. "first" is the
time of that call; "other prompts" is the first call with prompts of another length. The share of tokens that are equal
to those of transformers is for greedy text; in 16 bits with random weights, many scores are tied.

`--profile` prints the kernels of one step by their time. `--host` times the host alone, on any machine: the model is a
stub, which writes the given text.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measured import alone, environment

import regard
from regard.blocks.settings import Attention
from regard.decoding.continuation import Continuation, Prompt
from regard.decoding.decode import decode
from regard.decoding.fast import slots, triton_works
from regard.decoding.fast.graphs import GraphRecorder
from regard.decoding.model import SearchModel
from regard.decoding.settings import Absolute, Ends, GenerateOptions, Greedy, Rules, Sampling
from regard.models.build import build
from regard.models.families import Decoder
from regard.models.settings import Decoder as DecoderSettings
from regard.text.settings import ByteBpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.generator import Generator, TextFrame
from regard.weights.huggingface.directory import write_pretrained

SEARCHES: dict[str, Greedy | Sampling] = {"greedy": Greedy(), "top-k 50": Sampling(top_k=50)}


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = work(*arguments)
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def ours(model: Decoder, prompts: list[list[int]], tokens: int, search: Greedy | Sampling) -> list[list[int]]:
    rules = Rules(longest=Absolute(tokens=tokens))
    return [best[0].tokens for best in decode(model, prompts, Ends(), search, rules, batch_tokens=10**6)]


def theirs(
    model: Any, prompts: list[list[int]], tokens: int, search: Greedy | Sampling, static: bool
) -> list[list[int]]:
    rows = torch.tensor(prompts, device="cuda")
    sampling = {"do_sample": False} if isinstance(search, Greedy) else {"do_sample": True, "top_k": search.top_k}
    more = {"cache_implementation": "static"} if static else {}
    with torch.inference_mode():
        found = model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
            **sampling,
            **more,
        )
    read: list[list[int]] = found[:, rows.shape[1] :].tolist()
    return read


def memory(
    model: Decoder, rows: int, place: int, search: Greedy | Sampling
) -> tuple[slots.SlotMemory, Callable[[], None]]:
    """A memory whose rows are at a position, and one recorded step of them."""
    prepared = SearchModel(model, Ends())
    made = slots.SlotMemory(prepared, rows, 1024, GraphRecorder())
    sampling = isinstance(search, Sampling)
    made.top_k_S.fill_(slots.top_k(search, prepared.vocabulary))
    made.uniform_SC.uniform_() if sampling else made.uniform_SC.zero_()
    made.cache.place_B1.fill_(place)
    made.token_S.copy_(torch.arange(rows))
    choice = slots.TokenChoice.of([Prompt([1], 1, search)], prepared.vocabulary)
    return made, made._recorded(prepared, choice)


@torch.inference_mode()
def step_time(model: Decoder, rows: int, place: int, search: Greedy | Sampling, steps: int = 200) -> float:
    """Milliseconds of one step at a position."""
    made, graph = memory(model, rows, place, search)
    made.step_1.zero_()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for count in (8, steps):
        start.record()
        for _ in range(count):
            made.step_1.zero_()
            graph()
        end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps


@torch.inference_mode()
def profile(model: Decoder, rows: int, place: int, search: Greedy | Sampling) -> None:
    made, graph = memory(model, rows, place, search)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(10):
            made.step_1.zero_()
            graph()
        torch.cuda.synchronize()
    found = sorted(recorded.key_averages(), key=lambda each: -each.device_time_total)
    total = sum(each.device_time_total for each in found) / 10
    print(f"kernels of a step: {rows} rows at position {place}, {total:.0f} µs", flush=True)
    for each in found[:16]:
        print(f"  {each.device_time_total / 10:7.1f} µs {each.count / 10:6.1f} × {each.key[:90]}", flush=True)


class StubbedMemory(slots.SlotMemory):
    """Writes tokens of a text at once instead of running a model, to time the host alone."""

    text: torch.Tensor

    def run(self, model: SearchModel, choice: slots.TokenChoice) -> tuple[torch.Tensor, None]:
        count = len(self.token_S)
        place_TS = torch.randint(len(self.text) - slots.STEPS, (count,)) + torch.arange(slots.STEPS)[:, None]
        return torch.stack([self.text[place_TS].double(), torch.full((slots.STEPS, count), -1.5).double()]), None


def host(file: Path, rows: int, tokens: int, rounds: int) -> dict[str, int]:
    """Tokens per second of CPU time that the host's side of generation takes, with a stubbed model."""
    text = file.read_text()
    tokenizer = train_tokenizer(ByteBpe(size=8000), text.split("\n"))
    model = build(DecoderSettings(vocabulary=tokenizer.size, width=8, depth=1, attention=Attention(heads=2))).eval()
    assert isinstance(model, Decoder)
    StubbedMemory.text = torch.tensor(tokenizer.ids([text[:400_000]])[0])
    slots.SlotMemory = StubbedMemory  # type: ignore[misc]
    generator = Generator("stub", Path(), model, TokenizerPair(tokenizer, tokenizer), {}, TextFrame(limit=4096))
    generator.batch = lambda draft=None: Continuation(model, 4096, slots=True)  # type: ignore[method-assign]
    prompts = [text[500 * row : 500 * row + 200] for row in range(rows)]
    found = {}
    for name, more in (("plain", {}), ("stop strings", {"stop": ["\0"]}), ("log-probabilities", {"logprobs": 0})):
        options = GenerateOptions(tokens=tokens, rows=rows, **more)
        seconds = []
        for _ in range(rounds):
            start = time.process_time()
            assert all(len(row[0].ids) == tokens for row in generator.generations(prompts, options))
            seconds.append(time.process_time() - start)
        found[name] = round(rows * tokens / statistics.median(seconds))
    return found


def report(asked: argparse.Namespace, results: dict[str, Any]) -> None:
    known = {name: str(value) if isinstance(value, Path) else value for name, value in vars(asked).items()}
    table = {**environment(), "asked": {name: value for name, value in known.items() if name != "out"}, **results}
    print(json.dumps(results))
    if asked.out:
        asked.out.write_text(json.dumps(table, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    for name, value in (("prompt", 128), ("tokens", 512), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--peers", nargs="*", default=["dynamic", "static"], choices=["dynamic", "static"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--host", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # states why a fast path is not taken
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    if asked.host:
        report(asked, {"host": host(asked.host, max(asked.rows), asked.tokens, asked.rounds)})
        return
    model = build(regard.preset(asked.model), "cuda", torch.bfloat16).eval()
    assert isinstance(model, Decoder)
    print(f"Triton: {triton_works('cuda')}; running batch: {Continuation(model).slots is not None}", flush=True)
    systems: dict[str, Callable[..., list[list[int]]]] = {"regard": functools.partial(ours, model)}
    if asked.peers:
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as place:
            write_pretrained(model, place, config={"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None})
            other = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16).cuda().eval()
        for peer in asked.peers:
            systems[f"transformers, {peer}"] = functools.partial(theirs, other, static=peer == "static")
    results: dict[str, Any] = {}
    for rows in asked.rows:
        for name, search in SEARCHES.items():
            prompts = torch.randint(1, model.settings.vocabulary, (rows, asked.prompt)).tolist()
            first, seconds, texts = {}, {who: [] for who in systems}, {}
            for turn in range(asked.rounds + 1):
                for who, work in systems.items():
                    took, texts[who] = timed(work, prompts, asked.tokens, search)
                    assert all(len(text) == asked.tokens for text in texts[who]), who
                    first.setdefault(who, took)
                    seconds[who] += [took] if turn else []
            row: dict[str, Any] = {
                "tokens a second": {
                    who: round(rows * asked.tokens / statistics.median(all_)) for who, all_ in seconds.items()
                },
                "first, seconds": {who: round(took, 2) for who, took in first.items()},
            }
            shorter = [prompt[: asked.prompt - 31] for prompt in prompts]
            row["other prompts, seconds"] = round(timed(systems["regard"], shorter, asked.tokens, search)[0], 3)
            if asked.peers and isinstance(search, Greedy):
                pairs = zip(texts["regard"], texts[f"transformers, {asked.peers[0]}"], strict=True)
                row["equal tokens"] = round(
                    sum(a == b for mine, its in pairs for a, b in zip(mine, its, strict=True)) / rows / asked.tokens, 3
                )
            row["step, ms"] = {at: round(step_time(model, rows, at, search), 3) for at in (128, 640, 1000)}
            results[f"{rows} rows, {name}"] = row
            print(f"{rows} rows, {name}: {json.dumps(row)}", flush=True)
        if asked.profile:
            profile(model, rows, 640, SEARCHES["top-k 50"])
    print(f"peak memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    report(asked, results)


if __name__ == "__main__":
    with alone():
        main()
