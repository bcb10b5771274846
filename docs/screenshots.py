"""Takes the screenshots of `regard look` for docs/images, in Chromium and with the shipped model.

    python docs/screenshots.py [VIEW …]

The screenshots of images and of the rollout need a trained vision model; this script does not take them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TEXT = "Ein Hund läuft durch den tiefen Schnee, und die Kinder lachen."
HEADS = "decoder.0.cross.2,decoder.0.cross.3,decoder.0.cross.4"
STATES: dict[str, dict[str, str]] = {
    "architecture": {},
    "words": {"at": "decoder.cross"},
    "heads": {"at": "decoder.cross", "layer": "1", "head": "3"},
    "walk": {"at": "decoder.cross", "layer": "1", "head": "3", "step": "decoder.1.cross.weights"},
    "decode": {"beam": "3"},
    "lens": {},
    "vectors": {"word": "*"},
    "positions": {},
    "compare": {"edited": HEADS, "at": "decoder.cross", "layer": "1", "head": "2"},
}
SIZE = {"width": 1440, "height": 900}


def main(wanted: list[str]) -> None:
    command = [sys.executable, "-m", "regard", "look", "de-en", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, sync_playwright() as started:
        assert server.stderr is not None
        try:
            address = re.findall(r"http://\S+", server.stderr.readline())[0]
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for view, scheme in product(wanted or STATES, ("light", "dark")):
                page = browser.new_page(viewport=SIZE, color_scheme=scheme)
                page.goto(f"{address}#{urlencode({'text': TEXT, 'view': view, **STATES[view]})}")
                page.wait_for_selector(f"#view[aria-labelledby=tab-{view}] [data-ready=true]")
                if view == "heads":
                    page.wait_for_selector("[data-noted=true]")
                if view == "words":
                    page.wait_for_selector("[data-effect]")
                file = IMAGES / f"look-{view}{'' if scheme == 'light' else '-dark'}.png"
                page.screenshot(path=file)
                Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)  # a third of the size
                page.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main(sys.argv[1:])
