"""Times of `regard look` with 512 tokens in 12 layers of 12 heads, and the memory of its server.

    python bench/looking.py [--tokens 512] [--rounds 5] [--out FILE]

BERT's base encoder and a decoder of the same size, with random weights and a vocabulary of 30,000, are written to disk
and served by `regard look` in its own process. Chromium opens each view with another text each time, so that nothing is
cached. A time is from the request of the page until the view is complete; for heads, also until the enlarged head,
which is usable while the others load. At the end every layer is opened once, and the peak memory of the process is
compared with its memory before the first request.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
from measured import environment
from playwright.sync_api import Page, sync_playwright

import regard
from regard.blocks.settings import Attention
from regard.models.settings import Decoder, Encoder, Masked
from regard.text.settings import Words
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.directory import save_model

VOCABULARY, MINUTE = 30_000, 60_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def written(family: str, directory: Path) -> Path:
    tokenizer = train_tokenizer(Words(size=VOCABULARY), (f"w{number}" for number in range(VOCABULARY)))
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocabulary": tokenizer.size, "width": 768, "depth": 12, "attention": Attention(heads=12)}
    made = Encoder(**size, heads={"masked": Masked()}) if family == "encoder" else Decoder(**size)
    save_model(regard.build(made), directory)
    TokenizerPair.of(tokenizer).save(directory)
    return directory


def held(process: subprocess.Popen[str], name: str) -> int:
    """Memory of a process in MiB: VmRSS now, VmHWM at most."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return int(re.findall(rf"{name}:\s+(\d+)", status)[0]) // 1024


def opened(page: Page, address: str, **state: str) -> tuple[float, float]:
    """Seconds until something of a view can be read, of heads the enlarged one, and until all of it is there."""
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(f"{address}#{urlencode(state)}")
    whole = f"#view[aria-labelledby=tab-{state['view']}] [data-ready=true]"
    page.wait_for_selector("#enlarged" if state["view"] == "heads" else whole, timeout=MINUTE)
    first = time.perf_counter() - began
    page.wait_for_selector(whole, timeout=MINUTE)
    return round(first, 2), round(time.perf_counter() - began, 2)


def measure(family: str, page: Page, tokens: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            "-m",
            "regard",
            "look",
            str(written(family, Path(place))),
            "--no-browser",
            "--port",
            "0",
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            address = re.findall(r"http://\S+", process.stderr.readline())[0]
            page.goto(address)
            views = page.evaluate("fetch('api/about').then((answer) => answer.json())")["views"]
            draw = random.Random(0)

            def text() -> str:
                return " ".join(f"w{draw.randrange(VOCABULARY)}" for _ in range(tokens - 2))

            before = held(process, "VmRSS")
            seconds = {view: [opened(page, address, view=view, text=text()) for _ in range(rounds)] for view in views}
            whole, same = time.perf_counter(), text()
            for layer in range(12):
                opened(page, address, view="heads", text=same, layer=str(layer))
            whole = time.perf_counter() - whole
            return {
                "median seconds until a view can be read, and until all of it is there": {
                    view: [statistics.median(part) for part in zip(*each, strict=True)]
                    for view, each in seconds.items()
                },
                "each": seconds,
                "seconds for the heads of all layers, one after the other": round(whole, 1),
                "MiB of the server": {
                    "before": before,
                    "after": held(process, "VmRSS"),
                    "at most": held(process, "VmHWM"),
                },
            }
        finally:
            process.terminate()
            process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "tokens": asked.tokens, "threads": torch.get_num_threads()}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for family in ("encoder", "decoder"):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            result[family] = measure(family, page, asked.tokens, asked.rounds)
            print(family, json.dumps(result[family]), flush=True)
            page.close()
        browser.close()
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
