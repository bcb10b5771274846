"""Times of `regard look`: the first view, frames while hovering, and 512 tokens in 12 layers of 12 heads.

    python bench/looking.py [--tokens 512] [--rounds 5] [--only first hover encoder decoder] [--out FILE]

`first` opens the page of the shipped model in a new browser: seconds until the first view is complete, and from the
command to the address. `hover` moves the pointer over an enlarged map of 128 × 128 tokens and notes the time of every
frame (requestAnimationFrame); nearly every move reaches another cell. Frames are limited to 60 a second.

BERT's base encoder and a decoder of the same size, with random weights and a vocabulary of 30,000, are written to disk
and served by `regard look` in its own process. Chromium opens each view with another text each time, so that nothing is
cached. A time is from the request of the page until the view is complete; for heads, also until the enlarged head,
which is usable while the others load. At the end every layer is opened once, and the peak memory of the process is
compared with its memory before the first request.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
from measured import environment
from playwright.sync_api import Browser, Page, sync_playwright

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


@contextmanager
def served(model: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own process, and its address."""
    command = [sys.executable, "-m", "regard", "look", model, "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield process, re.findall(r"http://\S+", process.stderr.readline())[0]
    finally:
        process.terminate()
        process.wait(20)


def first_view(browser: Browser, rounds: int) -> dict[str, Any]:
    """The page of the shipped model: a new server and an empty browser in each round."""
    found: dict[str, list[float]] = {"command to address": [], "request to first view": []}
    for _ in range(rounds):
        began = time.perf_counter()
        with served("en-de") as (_, address):
            found["command to address"].append(round(time.perf_counter() - began, 2))
            context = browser.new_context(viewport={"width": 1280, "height": 720})
            page, began = context.new_page(), time.perf_counter()
            page.goto(address)
            page.wait_for_selector("#view [data-ready=true]", timeout=MINUTE)
            found["request to first view"].append(round(time.perf_counter() - began, 2))
            context.close()
    return {"median seconds": {name: statistics.median(each) for name, each in found.items()}, "each": found}


FRAMES = """() => { window.frames_ = []; const next = (time) => { frames_.push(time); requestAnimationFrame(next); };
requestAnimationFrame(next); }"""


def hovering(browser: Browser, rounds: int, tokens: int = 128) -> dict[str, Any]:
    """Frames while the pointer crosses the enlarged map of a head in rows."""
    found = []
    with tempfile.TemporaryDirectory() as place, served(str(written("encoder", Path(place)))) as (_, address):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        text = " ".join(f"w{number}" for number in range(tokens))
        opened(page, address, view="heads", text=text)
        page.evaluate(FRAMES)
        canvas = page.locator("#enlarged")
        box, cell = canvas.bounding_box(), float(canvas.get_attribute("data-cell") or 0)
        left, top = (float(canvas.get_attribute(f"data-{side}") or 0) for side in ("left", "top"))
        assert box is not None
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})  # processor time: other programs do not count

        def spent() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

        for _ in range(rounds):
            page.evaluate("frames_.length = 0")
            before = spent()
            for row in range(8, tokens, tokens // 8):
                y = box["y"] + top + (row + 0.5) * cell
                page.mouse.move(box["x"] + left + 1, y)
                page.mouse.move(box["x"] + left + (tokens - 1) * cell, y, steps=tokens)
            times = page.evaluate("frames_.slice()")
            gaps = sorted(after - before for before, after in itertools.pairwise(times))
            found.append(
                {
                    "ms of the page's thread for each frame": round(1000 * (spent() - before) / len(gaps), 2),
                    "frames per second": round(1000 * len(gaps) / sum(gaps), 1),
                    "95 % of frames within ms": round(gaps[int(0.95 * len(gaps))], 1),
                    "longest frame ms": round(gaps[-1], 1),
                    "frames": len(gaps),
                }
            )
        page.close()
    return {"cell in pixels": cell, "each": found}


def measure(family: str, page: Page, tokens: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, served(str(written(family, Path(place)))) as (process, address):
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
                view: [statistics.median(part) for part in zip(*each, strict=True)] for view, each in seconds.items()
            },
            "each": seconds,
            "seconds for the heads of all layers, one after the other": round(whole, 1),
            "MiB of the server": {
                "before": before,
                "after": held(process, "VmRSS"),
                "at most": held(process, "VmHWM"),
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["first", "hover", "encoder", "decoder"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "tokens": asked.tokens, "threads": torch.get_num_threads()}
    result["processes that want a core (1 minute)"] = round(os.getloadavg()[0], 1)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        if "first" in asked.only:
            result["first view of en-de"] = first_view(browser, asked.rounds)
        if "hover" in asked.only:
            result["hovering 128 x 128"] = hovering(browser, asked.rounds)
        print(json.dumps(result), flush=True)
        for family in (each for each in ("encoder", "decoder") if each in asked.only):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            result[family] = measure(family, page, asked.tokens, asked.rounds)
            print(family, json.dumps(result[family]), flush=True)
            page.close()
        browser.close()
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
