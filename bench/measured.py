"""What every result file says about how it was measured."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

import regard


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
