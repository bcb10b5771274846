"""`regard serve` as a process: it starts, answers and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tiny_translator import write_translator

from regard.use.model import load

SECONDS = 60


@contextmanager
def serving(model: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and where it listens."""
    command = [sys.executable, "-m", "regard", "serve", str(model), "--port", "0", "--threads", "1", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_API_KEY": ""}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + process.stderr.read()
        yield process, found[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def translate(address: str, q: str | list[str]) -> str | list[str]:
    body = json.dumps({"q": q, "source": "de", "target": "en"}).encode()
    request = Request(f"{address}/translate", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=SECONDS) as answer:
        found: str | list[str] = json.load(answer)["translatedText"]
        return found


def metrics(address: str) -> str:
    with urlopen(f"{address}/metrics", timeout=SECONDS) as answer:
        found: bytes = answer.read()
        return found.decode()


def test_it_answers_as_the_translator_does_and_finishes_running_requests_on_ctrl_c(tmp_path: Path) -> None:
    model = write_translator(tmp_path)
    texts = [f"ein Hund {number} läuft durch den Schnee" for number in range(8)]
    wanted = load(model, "cpu").translate(texts, to="en", beam=2)
    with serving(model, "--verbose", "batch_tokens=1") as (process, address), ThreadPoolExecutor(8) as clients:
        assert list(clients.map(lambda text: translate(address, text), texts)) == wanted
        assert translate(address, texts) == wanted
        with pytest.raises(HTTPError) as refused:
            translate(address, "a" * 100_000)
        assert refused.value.code == 413
        refused.value.close()
        assert 'regard_requests_total{method="POST",path="/translate",status="200"} 9' in metrics(address)
        asked = clients.submit(translate, address, ["ein Hund läuft durch den Schnee. "] * 20)
        while "\nregard_queue_tokens 0.0\n" in metrics(address):
            assert not asked.done()
        process.send_signal(signal.SIGINT)
        assert len(asked.result(SECONDS)) == 20
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert "POST /translate 200" in process.stderr.read()
