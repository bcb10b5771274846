"""Makes the data of recipes/shakespeare.toml from tiny Shakespeare as published.

    python recipes/shakespeare_data.py FROM/input.txt TO

The last tenth of the characters is for validation, as in the published figures (nanoGPT).
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(origin: Path, target: Path) -> None:
    text = origin.read_text(encoding="utf-8")
    target.mkdir(parents=True, exist_ok=True)
    cut = int(0.9 * len(text))
    (target / "train.txt").write_text(text[:cut], encoding="utf-8")
    (target / "valid.txt").write_text(text[cut:], encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
