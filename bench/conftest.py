"""Puts this folder and the repository's root on the path, as `python bench/…` does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
