"""Takes the screenshots of `regard look` for docs/images, in Chromium, light and dark.

    python docs/screenshots.py [NAME …]

Most show the shipped translator. `notebook` shows two frames of `regard.show` in a page of their own, as a notebook
displays them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import regard

IMAGES = Path(__file__).parent / "images"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TEXT = "Ein Hund läuft durch den tiefen Schnee, und die Kinder lachen."
IT = "The sea wasn't crossed by this giraffe because it was too timid ."
HEADS = "decoder.0.cross.2,decoder.0.cross.3,decoder.0.cross.4"
STATES: dict[str, dict[str, str]] = {
    "architecture": {},
    "words": {"at": "decoder.cross"},
    "heads": {"at": "decoder.cross", "layer": "1", "head": "3"},
    "rollout": {"view": "heads", "at": "decoder.cross", "map": "rollout", "scale": "own"},
    "walk": {"at": "decoder.cross", "layer": "1", "head": "3", "step": "decoder.1.cross.weights"},
    "decode": {"beam": "3"},
    "training": {"target": "A dog walks through the deep snow, and the children laugh.", "steps": "1"},
    "lens": {},
    "attribution": {},
    "vectors": {"word": "*"},
    "arrows": {"view": "vectors", "arrows": "1"},
    "positions": {},
    "compare": {"edited": HEADS, "at": "decoder.cross", "layer": "1", "head": "2"},
    "task": {"text": IT},
    "image": {"map": "gradient"},
    "notebook": {},
}
MODELS = {"task": "referent-tags", "image": "digits"}
"""Other models than the translator."""
WAITS = {"heads": "[data-noted=true]", "words": "[data-effect]"}
SIZE = {"width": 1440, "height": 900}


@contextmanager
def served(model: str) -> Iterator[str]:
    command = [sys.executable, "-m", "regard", "look", model, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            yield re.findall(r"http://[^\s#]+", server.stderr.readline())[0]
        finally:
            server.terminate()


def take(browser: Browser, address: str, name: str, scheme: str) -> None:
    page = browser.new_page(viewport=SIZE, color_scheme=scheme)
    page.set_default_timeout(60_000)
    if address.startswith("file:"):
        page.goto(address)
        for frame in page.frames[1:]:
            frame.wait_for_selector("#view [data-ready=true]")
    else:
        state = {"text": TEXT, "view": name, **STATES[name]}
        page.goto(f"{address}#{urlencode(state)}")
        page.wait_for_selector(f"#view[aria-labelledby=tab-{state['view']}] [data-ready=true]")
        if name in WAITS:
            page.wait_for_selector(WAITS[name])
        if name == "image":
            page.click("#deletion")
            page.wait_for_selector("#deletion-curve")
    file = IMAGES / f"look-{name}{'' if scheme == 'light' else '-dark'}.png"
    page.screenshot(path=file)
    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)  # a third of the size
    page.close()


def notebook(directory: Path, scheme: str) -> str:
    """A page with two frames, and its address."""
    looks = [
        regard.show("de-en", TEXT, view, at="decoder.1.cross.3", height=420, theme=scheme)  # type: ignore[arg-type]
        for view in ("heads", "lens")
    ]
    file = directory / f"{scheme}.html"
    body = "".join(f"<p></p>{look._repr_html_()}" for look in looks)
    file.write_text(f"<!doctype html><meta charset='utf-8'><body style='color-scheme: {scheme}'>{body}", "utf-8")
    return file.as_uri()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(STATES))
    asked = parser.parse_args()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for model in ("de-en", *MODELS.values()):
            names = [name for name in asked.names if MODELS.get(name, "de-en") == model]
            if not names:
                continue
            with tempfile.TemporaryDirectory() as place, served(model) as address:
                for name, scheme in product(names, ("light", "dark")):
                    shown = notebook(Path(place), scheme) if name == "notebook" else address
                    take(browser, shown, name, scheme)


if __name__ == "__main__":
    main()
