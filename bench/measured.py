"""Shared by benchmarks: the environment of a measurement, and the lines of a file."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import regard

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, which is not part of the package


def lines(path: Path) -> list[str]:
    """Of a text, compressed or not."""
    read = path.read_bytes()
    text = (gzip.decompress(read) if path.suffix == ".gz" else read).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def processor() -> str:
    """The name of the CPU, and how many of its cores PyTorch uses."""
    path = Path("/proc/cpuinfo")
    names = [line for line in lines(path) if line.startswith("model name")] if path.is_file() else []
    name = names[0].partition(": ")[2] if names else "CPU"
    return f"{name}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def environment() -> dict[str, str]:
    """Command, hardware, versions, commit and date of this run."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": " ".join(["python", *sys.argv]),
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "torch": torch.__version__,
        "regard": regard.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
    }


@contextmanager
def alone() -> Iterator[None]:
    """Pauses the trainings that share this machine while something is timed."""
    paused = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"\0-m\0regard\0train\0" in path.read_bytes()
    ]
    try:
        for process in paused:
            os.kill(process, signal.SIGSTOP)
        time.sleep(1 if paused else 0)  # the device finishes what was launched
        yield
    finally:
        for process in paused:
            os.kill(process, signal.SIGCONT)
