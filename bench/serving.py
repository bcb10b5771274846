"""Load test of the server: 64 clients in a closed loop, correct answers, bounded memory, and overload.

    PYTHONPATH=src python bench/serving.py [MODEL] [--seconds 300] [--clients 64] [--long 8] [--idle 1100] \\
        [--texts FILE] [--out result.json]

`regard serve MODEL` runs in its own process. Each of `--clients` sends its next request when the last one is answered:
20 words, or `--characters` characters for `--long` of them. `--idle` further connections are kept open, half of them
with the first bytes of a request. Every answer must have status 200 and equal the translation in Python, made before
(texts whose translation is a tie, which rounding decides, are counted separately), and p99 of the short ones must be at
most 5 times their p50. Then follow a burst of more requests than the queue holds, hostile requests, and a SIGTERM under
load. `--random WIDTH` uses a model with random weights, to measure the server alone. The clients are plain sockets,
which take little processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measured import environment

import regard
from regard.blocks.settings import Attention
from regard.data.embedded import GrammarPart, grammar_pairs
from regard.models.settings import EncoderDecoder
from regard.serving.http import open_files
from regard.serving.settings import Serving
from regard.serving.translation import PART
from regard.text.settings import Bpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.documents import sections
from regard.use.model import load
from regard.use.translator import Translator
from regard.weights.directory import save_model

WORDS = 20
TEXTS = 120
"""Different requests, of which each client draws at random."""
HEAD = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
COMPANY = (0, 1, 4, 16, 48)
"""Texts with which a text is translated again, to see whether rounding decides what it becomes."""
LONG_TEXTS = 6
"""Different long requests."""


# ----------------------------------------------------------------------------------------------- models and texts


def sentences(language: str, number: int, part: GrammarPart) -> list[str]:
    """Texts of 20 words from the embedded grammar, where no file gives others."""
    words = [
        word for pair in grammar_pairs(part) for word in (pair.source if language == "en" else pair.target).split()
    ]
    return cut(words)[:number]


def cut(words: list[str]) -> list[str]:
    return [" ".join(words[start : start + WORDS]) for start in range(0, len(words) - WORDS, WORDS)]


def random_model(directory: Path, width: int) -> Path:
    """Weights that mean nothing and cost more than trained ones do, since a text seldom ends before its longest."""
    tokenizer = train_tokenizer(Bpe(size=8000), sentences("de", 2000, "valid") + sentences("en", 2000, "valid"))
    torch.manual_seed(0)
    settings = EncoderDecoder(
        vocabulary=tokenizer.size, width=width, depth=3, attention=Attention(heads=max(width // 64, 1))
    )
    tables = {"task": "translate", "data": {"kind": "parallel", "languages": ["de", "en"]}}
    save_model(regard.build(settings), directory, tables=tables)
    TokenizerPair.of(tokenizer).save(directory)
    return directory


# ---------------------------------------------------------------------------------------------------------- process


class Server:
    """`regard serve` in a process of its own."""

    def __init__(self, model: str, threads: int | None, words: list[str]) -> None:
        command = [sys.executable, "-m", "regard", "serve", model, "--port", "0", *words]
        command += ["--threads", str(threads)] if threads else []
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            raise SystemExit(line + self.process.stderr.read())
        self.port = int(found[1])

    def memory(self) -> float:
        """Resident, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def ask(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(raw)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return int(head[0].split()[1]), headers, body

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()
            self.reader = None


def request(text: str | list[str], direction: tuple[str, str]) -> bytes:
    body = json.dumps({"q": text, "source": direction[0], "target": direction[1]}).encode()
    return f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body


# ------------------------------------------------------------------------------------------------------------- load


class Load:
    """Clients in a closed loop, and what they saw. The first `long` clients send long texts."""

    def __init__(self, server: Server, texts: list[str], longs: list[str], direction: tuple[str, str]) -> None:
        self.server, self.texts, self.longs, self.direction = server, texts, longs, direction
        self.seconds: dict[str, list[float]] = {"short": [], "long": []}
        self.statuses: Counter[str] = Counter()
        self.answers: dict[str, Counter[str]] = {text: Counter() for text in (*texts, *longs)}
        self.memory: list[tuple[float, float]] = []
        self.closed = 0
        """Idle connections that the server closed; each is opened again."""
        self.until = 0.0

    async def run(self, clients: int, long: int, idle: int, seconds: float) -> None:
        begun = time.monotonic()
        self.until = begun + seconds
        working = [self._client(random.Random(seed), seed < long) for seed in range(clients)]
        await asyncio.gather(self._watch(begun), *working, *(self._idle(number) for number in range(idle)))

    async def _client(self, chance: random.Random, long: bool) -> None:
        client = Client(self.server.port)
        while time.monotonic() < self.until:
            text = chance.choice(self.longs if long else self.texts)
            begun = time.monotonic()
            try:
                status, _, body = await client.ask(request(text, self.direction))
            except (OSError, asyncio.IncompleteReadError) as error:
                self.statuses[type(error).__name__] += 1
                client.close()
                continue
            self.seconds["long" if long else "short"].append(time.monotonic() - begun)
            self.statuses[str(status)] += 1
            if status == 200:
                self.answers[text][json.loads(body)["translatedText"]] += 1
        client.close()

    async def _idle(self, number: int) -> None:
        """Opens a connection again and again, and sends nothing or only the first bytes of a request."""
        while (left := self.until - time.monotonic()) > 0:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
                writer.write(b"POST /trans" if number % 2 else b"")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), left)
                    self.closed += 1
                writer.close()
            except OSError:
                self.closed += 1
            await asyncio.sleep(1)

    async def _watch(self, begun: float) -> None:
        while time.monotonic() < self.until:
            self.memory.append((time.monotonic() - begun, self.server.memory()))
            await asyncio.sleep(1)

    def usual(self, start: float) -> float:
        """The median of half a minute: what a batch needs comes and goes."""
        return median(memory for at, memory in self.memory if start <= at < start + 30)

    def peaks(self) -> list[float]:
        found: dict[int, float] = {}
        for at, memory in self.memory:
            found[int(at // 30)] = max(found.get(int(at // 30), 0.0), round(memory, 1))
        return list(found.values())


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def judged(load_: Load, translator: Translator, wanted: dict[str, str], options: dict[str, Any]) -> dict[str, int]:
    """Answers that are the translator's own, ties with it, and wrong ones."""
    found = Counter({"right": 0, "ties": 0, "wrong": 0})
    for text, answers in load_.answers.items():
        for answer, count in answers.items():
            right = answer == wanted[text]
            kind = "right" if right else "ties" if _tie(translator, load_.texts, text, answer, options) else "wrong"
            found[kind] += count
    return dict(found)


def _tie(translator: Translator, others: list[str], text: str, answer: str, options: dict[str, Any]) -> bool:
    """Whether the translator returns this text too, in other batches: then rounding decided between two sequences."""
    rests = {answer}
    for part in sections(text, PART):  # as the server splits it
        versions = {translator.translate([part, *others[:number]], **options)[0] for number in COMPANY}
        rests = {rest.removeprefix(each) for rest in rests for each in versions if rest.startswith(each)}
    return "" in rests


# -------------------------------------------------------------------------------------------------- beyond the bounds


async def burst(server: Server, texts: list[str], direction: tuple[str, str], number: int) -> dict[str, Any]:
    """More requests at once than the queue holds: each is answered, or refused with a time to try again."""
    clients = [Client(server.port) for _ in range(number)]
    got = await asyncio.gather(*(c.ask(request(texts[i % len(texts)], direction)) for i, c in enumerate(clients)))
    for client in clients:
        client.close()
    retries = [headers.get("retry-after") for status, headers, _ in got if status == 503]
    return {
        "requests": number,
        "statuses": dict(Counter(str(status) for status, _, _ in got)),
        "503 without Retry-After": sum(retry is None for retry in retries),
    }


def hostile(direction: tuple[str, str]) -> dict[str, bytes]:
    good = request("Hund", direction)
    head = HEAD.encode()

    def body(raw: bytes) -> bytes:
        return head + f"Content-Length: {len(raw)}\r\n\r\n".encode() + raw

    source, target = (code.encode() for code in direction)
    rest = b'", "source": "' + source + b'", "target": "' + target + b'"}'
    return {
        "too many characters": request("wort " * 4000, direction),
        "too many texts": request(["a"] * 1000, direction),
        "a body of 10 GB": head + b"Content-Length: 10000000000\r\n\r\n",
        "no JSON": body(b"{"),
        "not UTF-8": body(b'{"q": "\xff\xfe' + rest),
        "half a surrogate": body(b'{"q": "\\ud800' + rest),
        "NUL": body(b'{"q": "a\\u0000b' + rest),
        "deep JSON": body(b"[" * 50_000),
        "a huge number": body(b'{"q": ' + b"9" * 50_000 + b"}"),
        "wrong type": body(b'{"q": {"a": 1}, "source": "' + source + rest[len(b'", "source": "' + source) :]),
        "unknown language": request("Hund", ("xx", direction[1])),
        "huge header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 500_000 + b"\r\n\r\n",
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        "another Host": good.replace(b"Host: localhost", b"Host: evil.example"),
        "compressed": good.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1),
        "chunks that are none": head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    }


async def refusals(server: Server, direction: tuple[str, str]) -> dict[str, int]:
    found = {}
    for name, raw in hostile(direction).items():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(raw)
            found[name] = int((await asyncio.wait_for(reader.readline(), 30)).split()[1])
        finally:
            writer.close()
    return found


# ------------------------------------------------------------------------------------------------------------- main


def measure(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    translator = load(model, "cpu")
    assert isinstance(translator, Translator)
    direction = translator.directions[0]
    texts = read_texts(arguments.texts) if arguments.texts else sentences(direction[0], TEXTS, "test")
    longs = long_texts(texts, arguments.characters)
    settings = Serving()
    options = {"to": direction[1], "beam": settings.beam}
    wanted = dict(zip((*texts, *longs), translator.translate([*texts, *longs], **options), strict=True))
    server = Server(model, arguments.threads, arguments.setting)
    ready = server.memory()
    loaded = Load(server, texts, longs, direction)
    asyncio.run(loaded.run(arguments.clients, arguments.long, arguments.idle, arguments.seconds))
    first = min(60, arguments.seconds / 5)
    minute, end = loaded.usual(first), loaded.usual(arguments.seconds - first / 2)
    requests = sum(map(len, loaded.seconds.values()))
    result: dict[str, Any] = {
        "model": arguments.model or f"random, width {arguments.random}",
        "parameters": sum(each.numel() for each in translator.network.parameters()),
        "clients": arguments.clients,
        "long clients": arguments.long,
        "characters of long requests": arguments.characters,
        "idle connections": arguments.idle,
        "idle connections closed": loaded.closed,
        "seconds": arguments.seconds,
        "requests": requests,
        "statuses": dict(loaded.statuses),
        **{
            f"{kind}: {name}": value for kind, times in loaded.seconds.items() for name, value in latency(times).items()
        },
        "requests/s": round(requests / arguments.seconds, 1),
        "MiB when ready": round(ready, 1),
        "MiB after the first minute": round(minute, 1),
        "MiB at the end": round(end, 1),
        "growth %": round(100 * (end / minute - 1), 2),
    }
    result["peaks by half minute, MiB"] = loaded.peaks()
    show(result)
    result["answers"] = judged(loaded, translator, wanted, options)
    tokens = sum(translator.sizes(texts)) / len(texts)
    more = {
        "burst": asyncio.run(burst(server, texts, direction, int(1.1 * settings.queue / tokens))),
        "hostile": asyncio.run(refusals(server, direction)),
        "exit code after SIGTERM": server.end(),
    }
    show({"answers": result["answers"], **more})
    return result | more


def show(result: dict[str, Any]) -> None:
    for name, value in result.items():
        print(f"{name:28} {value}", flush=True)


def latency(times: list[float]) -> dict[str, float]:
    if not times:
        return {}
    p50, p99 = median(times), percentile(times, 0.99)
    return {"requests": len(times), "p50 ms": round(1000 * p50, 1), "p99 ms": round(1000 * p99, 1),
            "longest ms": round(1000 * max(times), 1), "p99/p50": round(p99 / p50, 2)}  # fmt: skip


def long_texts(texts: list[str], characters: int) -> list[str]:
    """Texts of about this length, which begin at different sentences."""
    whole = [". ".join(texts[start:]) for start in range(0, LONG_TEXTS * 5, 5)]
    return [text[:characters].rpartition(" ")[0] for text in whole]


def read_texts(path: Path) -> list[str]:
    """Lines of a file, joined and cut to 20 words each."""
    return cut(path.read_text(encoding="utf-8").split())[:TEXTS]


def fine(result: dict[str, Any]) -> bool:
    return (
        set(result["statuses"]) == {"200"}
        and result["answers"]["wrong"] == 0
        and result["growth %"] < 5
        and result["short: p99/p50"] <= 5
        and set(result["burst"]["statuses"]) == {"200", "503"}
        and result["burst"]["503 without Retry-After"] == 0
        and all(400 <= status < 500 for status in result["hostile"].values())
        and result["exit code after SIGTERM"] == 0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a shipped model or a directory; none: random weights")
    parser.add_argument("--random", type=int, default=256, help="width of a model with random weights")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--long", type=int, default=8, help="clients that send long requests")
    parser.add_argument("--characters", type=int, default=3000, help="characters of a long request")
    parser.add_argument("--idle", type=int, default=1100, help="idle connections")
    parser.add_argument("--threads", type=int, help="of the server")
    parser.add_argument("--texts", type=Path, help="a file of text in the model's source language")
    parser.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the server")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    open_files(4 * arguments.idle + 1024)
    about = environment() | {"hardware": f"{os.cpu_count()} CPU cores"}
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or str(random_model(Path(folder), arguments.random))
        result = measure(arguments, model)
    if arguments.out:
        text = json.dumps({"environment": about, "result": result}, indent=1, ensure_ascii=False)
        arguments.out.write_text(text + "\n", encoding="utf-8")
    if not fine(result):
        sys.exit(1)


if __name__ == "__main__":
    main()
