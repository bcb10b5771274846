"""Shared by benchmarks: the environment of a measurement, and the lines of a file."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from pathlib import Path

import torch

import regard

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, which is not part of the package


def lines(path: Path) -> list[str]:
    """Of a text, compressed or not."""
    read = path.read_bytes()
    text = (gzip.decompress(read) if path.suffix == ".gz" else read).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def environment() -> dict[str, str]:
    """Command, hardware, versions, commit and date of this run."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": " ".join(["python", *sys.argv]),
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "regard": regard.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
    }
