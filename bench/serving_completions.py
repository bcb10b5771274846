"""Load test of completions: concurrent streams for minutes, none mixed up, bounded memory, time to the first token.

    PYTHONPATH=src python bench/serving_completions.py [MODEL] [--streams 64] [--minutes 5] [--leaving 0.05] \\
        [--threads 2] [--setting KEY=VALUE] [--out result.json]

`regard serve MODEL` runs in its own process; without MODEL it is a decoder with random weights. Each of `--streams`
clients asks for its next stream when the last one has ended: one of 48 prompts with its own seed, length and sampling,
whose text was written in Python before. A text that differs from its own is mixed up if it has more of its beginning in
common with another one; otherwise rounding has decided between two tokens, which is counted. A share of the clients
(`--leaving`) closes its connection after a few events. At the end no row may be left in the batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measured import environment
from serving import Client, Server, percentile, sentences, show

import regard
from regard.blocks.settings import Attention
from regard.models.cpu import fixed
from regard.models.settings import Decoder
from regard.text.settings import ByteBpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.generator import Generator, TextStream, write
from regard.use.model import load
from regard.weights.directory import save_model

REQUESTS = 48
"""Different requests, of which each client draws at random."""
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
MOST_ROUNDED = 0.02
"""Largest share of texts that may differ by rounding."""
MOST_GROWTH = 5.0
"""Largest growth of the memory, in percent."""


def random_model(directory: Path, width: int) -> Path:
    """A decoder with weights that mean nothing; its texts seldom end before their limit."""
    tokenizer = train_tokenizer(ByteBpe(size=2000), sentences("en", 500, "valid"))
    torch.manual_seed(0)
    settings = Decoder(vocabulary=tokenizer.size, width=width, depth=4, attention=Attention(heads=4))
    save_model(regard.build(settings), directory)
    TokenizerPair.of(tokenizer).save(directory)
    return directory


def requests(model: Generator, tokens: int) -> list[tuple[dict[str, Any], str]]:
    """Requests with their own options, and their texts."""
    model.network = fixed(model.network)
    found, texts = [], []
    for number, text in enumerate(sentences("en", REQUESTS, "test")):
        options = {"temperature": (0.0, 0.7, 1.0)[number % 3], "top_p": (1.0, 0.9)[number % 2], "seed": number}
        length = tokens * (16 + number) // 16
        fields = {"prompt": f"{number}: {text}"[: 20 + 3 * number], "max_tokens": length, **options}
        found.append(fields | {"stream": True})
        changes = {"tokens": fields["max_tokens"], **options}
        texts.append(TextStream(model, fields["prompt"], model.options(None, changes), keep=False))
    batch, current = model.batch(), texts
    while current:
        write(batch, current)
        current = [text for text in current if text.finish is None]
    return [(fields, text.generation().text) for fields, text in zip(found, texts, strict=True)]


def common(one: str, other: str) -> int:
    """Number of first characters that are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Streams:
    """Clients in a closed loop, and what they saw."""

    def __init__(self, server: Server, asked: list[tuple[dict[str, Any], str]], leaving: float) -> None:
        self.server, self.asked, self.leaving = server, asked, leaving
        self.first: list[float] = []
        """Seconds until the first event, for each stream."""
        self.seen: Counter[str] = Counter()
        self.events = 0
        self.memory: list[float] = []
        self.until = 0.0

    async def run(self, streams: int, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        await asyncio.gather(self._watch(), *(self._client(random.Random(seed)) for seed in range(streams)))

    async def _client(self, chance: random.Random) -> None:
        while time.monotonic() < self.until:
            fields, wanted = chance.choice(self.asked)
            most = chance.randint(1, 8) if chance.random() < self.leaving else None
            try:
                self.seen[self._judged(await self._text(fields, most), wanted)] += 1
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                self.seen[f"error: {type(error).__name__} {error}"[:200]] += 1

    async def _text(self, fields: dict[str, Any], most: int | None) -> str | None:
        """The text of a stream; None if the client leaves after `most` events."""
        body, text, begun, count = json.dumps(fields).encode(), "", time.monotonic(), 0
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status = (await reader.readline()).decode("latin-1").strip()
            if " 200 " not in f"{status} ":
                raise ValueError(status)
            while line := await reader.readline():
                if not line.startswith(b"data: "):
                    continue
                if count == 0:
                    self.first.append(time.monotonic() - begun)
                count += 1
                self.events += 1
                if line.strip() == b"data: [DONE]":
                    return text
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise ValueError(event["error"]["message"])
                text += event["choices"][0]["text"]
                if count == most:
                    return None
            raise ValueError("the stream ended without [DONE]")
        finally:
            writer.close()

    def _judged(self, text: str | None, wanted: str) -> str:
        if text is None:
            return "left"
        if text == wanted:
            return "right"
        others = max(common(text, other) for _, other in self.asked if other != wanted)
        return "mixed up" if others > common(text, wanted) else "rounded"

    async def _watch(self) -> None:
        while time.monotonic() < self.until:
            self.memory.append(self.server.memory())
            await asyncio.sleep(0.5)

    def tenths(self) -> list[list[float]]:
        size = max(len(self.memory) // 10, 1)
        return [self.memory[start : start + size] for start in range(0, len(self.memory), size)]

    def growth(self) -> float:
        """Growth of the memory from the third tenth of the time to the last, in percent."""
        tenths = self.tenths()
        return round(100 * (median(tenths[-1]) / median(tenths[min(2, len(tenths) - 1)]) - 1), 2)


async def rows_left(server: Server) -> float:
    """Rows in the running batch, after some time for the last ones to leave."""
    await asyncio.sleep(2)
    client = Client(server.port)
    _, _, body = await client.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    client.close()
    return float(re.search(r"^regard_batch_rows (\S+)", body.decode(), re.MULTILINE)[1])  # type: ignore[index]


def measure(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    model = load(name, "cpu")
    if not isinstance(model, Generator):
        raise SystemExit(f"{name} does not write texts; give a decoder")
    parameters = sum(each.numel() for each in model.network.parameters())  # before they are packed
    asked = requests(model, arguments.tokens)
    server = Server(name, arguments.threads, arguments.setting)
    streams = Streams(server, asked, arguments.leaving)
    seconds = 60 * arguments.minutes
    asyncio.run(streams.run(arguments.streams, seconds))
    times, errors = streams.first, sum(count for kind, count in streams.seen.items() if kind.startswith("error"))
    return {
        "model": Path(arguments.model).name if arguments.model else f"random, width {arguments.random}",
        "parameters": parameters,
        "streams": arguments.streams,
        "seconds": seconds,
        "texts": dict(streams.seen),
        "errors": errors,
        "mixed up": streams.seen["mixed up"],
        "rounded": streams.seen["rounded"],
        "events/s": round(streams.events / seconds, 1),
        "first token, p50 ms": round(1000 * median(times), 1) if times else None,
        "first token, p99 ms": round(1000 * percentile(times, 0.99), 1) if times else None,
        "MiB at the end": round(streams.memory[-1], 1),
        "MiB by tenth": [round(median(part), 1) for part in streams.tenths()],
        "growth %": streams.growth(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "rows left": asyncio.run(rows_left(server)),
        "exit code after SIGTERM": server.end(),
    }


def fine(result: dict[str, Any]) -> bool:
    whole = result["texts"].get("right", 0) + result["rounded"]
    return (
        result["errors"] == result["mixed up"] == result["rows left"] == result["exit code after SIGTERM"] == 0
        and whole > 0
        and result["rounded"] <= MOST_ROUNDED * whole
        and result["growth %"] < MOST_GROWTH
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a directory or a GGUF file; none: random weights")
    parser.add_argument("--random", type=int, default=128, help="width of a model with random weights")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument(
        "--tokens", type=int, default=16, help="of the shortest text; the longest has four times as many"
    )
    parser.add_argument("--leaving", type=float, default=0.05, help="share of streams whose client leaves early")
    parser.add_argument("--threads", type=int, help="of the server")
    parser.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the server")
    parser.add_argument("--out", type=Path, help="by default bench/results/DATE-serving-completions.json")
    arguments = parser.parse_args()
    about = environment() | {"hardware": f"{os.cpu_count()} CPU cores"}
    with tempfile.TemporaryDirectory() as folder:
        name = arguments.model or str(random_model(Path(folder), arguments.random))
        result = measure(arguments, name)
    show(result)
    out = arguments.out or Path(__file__).parent / "results" / f"{about['date']}-serving-completions.json"
    out.write_text(json.dumps({"environment": about, "result": result}, indent=1) + "\n", encoding="utf-8")
    if not fine(result):
        sys.exit(1)


if __name__ == "__main__":
    main()
