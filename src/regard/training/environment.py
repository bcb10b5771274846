"""`environment.json`: with which versions, on which machine and by which command a run was trained, and resumed."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import regard
from regard.files import write_text
from regard.training.disk import writing

FILE = "environment.json"
MATTERS = ("regard", "commit", "python", "torch", "numpy", "tokenizers", "cuda", "cpu", "device", "threads")
"""A change of any of these may change results."""


def describe(device: torch.device) -> dict[str, Any]:
    """What there is now."""
    return {
        "regard": regard.__version__,
        "commit": _commit(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "safetensors": _version("safetensors"),
        "tokenizers": _version("tokenizers"),
        "cuda": torch.version.cuda,
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "command": shlex.join(sys.argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(run: Path, device: torch.device) -> None:
    """At the start of a run."""
    _write(run, {**describe(device), "resumes": []})


def resume(run: Path, device: torch.device) -> list[str]:
    """Adds a resume to the file, and warns, in sentences, of what is no longer what it was."""
    now = describe(device)
    try:
        content = json.loads((run / FILE).read_text(encoding="utf-8"))
        before = {**content}
        for earlier in content["resumes"]:
            before |= {name: change[1] for name, change in earlier["changed"].items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        _write(run, {**now, "resumes": []})
        return [f"{run / FILE} is missing or damaged, so it is not known whether anything changed; it is written anew"]
    changed = {name: [before.get(name), now[name]] for name in now if before.get(name) != now[name]}
    for name in ("command", "time"):
        changed.pop(name, None)
    content["resumes"].append({"time": now["time"], "command": now["command"], "changed": changed})
    _write(run, content)
    matters = [f"{name} ({old}, now {new})" for name, (old, new) in changed.items() if name in MATTERS]
    if not matters:
        return []
    return [f"changed since this run was last started: {', '.join(matters)}; results may differ in the last bits"]


def _write(run: Path, content: dict[str, Any]) -> None:
    with writing(run / FILE, "make room, or make the directory writable"):
        write_text(run / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(package: Path) -> str | None:
    """The commit of a checkout that holds this package, with a word where files were changed since."""
    # A virtual environment may lie inside somebody else's checkout: only files that git knows are of one.
    if _git(package, "ls-files", "--error-unmatch", "errors.py") is None:
        return None
    commit = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "diff", "--quiet", "HEAD", "--", ".") is None
    return f"{commit} with changes" if commit and changed else commit


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor() or platform.machine()
